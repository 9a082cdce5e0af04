//! An active's status, as its background tasks tell it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dax::forms::Forms;
use dax::scrub;
use parking_lot::Mutex;
use serde_json::json;

use super::super::backpressure::Waits;
use super::super::context::Context;
use super::super::{beneath, claims, past, slots, throughput};
use super::{Active, configuring};

/// Status of an active's background tasks.
pub(super) struct ActiveStatus {
    pub scrub: scrub::ScrubStatus,
    pub retained: claims::RetainedStatus,
    pub past: past::PastStatus,
    pub filling: beneath::FillStatus,
    /// Commits that were held for slow standbys, if they are.
    pub waits: Arc<Mutex<Waits>>,
    pub throughput: throughput::ThroughputStatus,
    pub slots: slots::guard::SlotStatus,
    /// What became of the parameters that operators want.
    pub configuring: configuring::ConfigStatus,
}

impl Active {
    pub(super) fn report(&self, context: &Context, told: &ActiveStatus) {
        // Raised by this node, whose answer may have been lost, or before it became the active.
        if let Some(forms) = *context.forms.borrow() {
            self.storage.use_forms(forms.min(Forms::NEWEST));
        }
        let synced = *self.sealer.synced().borrow();
        let standbys: Vec<_> = context
            .server
            .subscribers()
            .into_iter()
            .map(|s| json!({ "node": s.who.node, "progress": s.progress }))
            .collect();
        context.board.report(json!({
            "node": context.me.node,
            "volume": context.config.cluster.stored_in(),
            "parent": self.storage.settings().layer.as_ref().map(|layer| &layer.parent),
            "epoch": self.epoch,
            "timeline": synced.timeline.0,
            "synced_lsn": synced.end.to_string(),
            "overlay_blocks_left": self.view.inherited_left(),
            "standbys": standbys,
            "proxies": context.server.proxies(),
            "scrub": *told.scrub.lock(),
            "retained": *told.retained.lock(),
            "past": *told.past.lock(),
            "filling": *told.filling.lock(),
            "waits": *told.waits.lock(),
            "throughput": *told.throughput.lock(),
            "slots": *told.slots.lock(),
            "log": self.log.told(),
            "server": *context.facts.lock(),
            "control": context.control_report(),
            "forms": context.forms_report(),
            "configured": told.configuring.version.load(Ordering::Relaxed),
            "configuration_trouble": *told.configuring.trouble.lock(),
        }));
    }
}
