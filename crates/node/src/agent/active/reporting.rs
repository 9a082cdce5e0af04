//! An active's status, as its background tasks tell it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dax::scrub;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::backpressure::Waits;
use super::super::context::Context;
use super::super::{beneath, claims, past, slots, throughput};
use super::configuring;

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
    /// Outcome of the parameters that operators want.
    pub configuring: configuring::ConfigStatus,
}

impl ActiveStatus {
    /// Status of an active that says this of itself.
    pub fn describe(&self, context: &Context, mut own: Value) -> Value {
        let standbys: Vec<_> = context
            .server
            .subscribers()
            .into_iter()
            .map(|s| json!({ "node": s.who.node, "progress": s.progress }))
            .collect();
        let told = json!({
            "node": context.me.node,
            "volume": context.config.cluster.stored_in(),
            "standbys": standbys,
            "proxies": context.server.proxies(),
            "scrub": *self.scrub.lock(),
            "retained": *self.retained.lock(),
            "past": *self.past.lock(),
            "filling": *self.filling.lock(),
            "waits": *self.waits.lock(),
            "throughput": *self.throughput.lock(),
            "slots": *self.slots.lock(),
            "server": *context.facts.lock(),
            "control": context.control_report(),
            "forms": context.forms_report(),
            "configured": self.configuring.version.load(Ordering::Relaxed),
            "configuration_trouble": *self.configuring.trouble.lock(),
        });
        if let (Value::Object(own), Value::Object(told)) = (&mut own, told) {
            own.extend(told);
        }
        own
    }
}
