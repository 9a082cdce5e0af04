//! What a text means to this session: by the catalog and the search path that it sees.

use std::sync::Arc;

use protocol::frame::Refusal;

use super::super::wire::Said;
use super::memory::Plans;
use super::{Result, Session};
use crate::sql::{self, Plan};

/// Where unqualified names are looked for, which of them mean something temporary, and how strings and times are written.
const NAMES: &str = "SELECT pg_catalog.array_to_json(pg_catalog.current_schemas(false)), \
    (SELECT coalesce(pg_catalog.json_agg(relname), '[]') FROM pg_catalog.pg_class \
     WHERE relnamespace OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema() AND pg_catalog.pg_table_is_visible(oid)), \
    pg_catalog.current_setting('standard_conforming_strings'), pg_catalog.current_setting('DateStyle')";

impl Session {
    /// Plans a text, with the catalog as it is.
    pub(super) async fn plan(&mut self, text: &str, ships: bool) -> Result<Plans> {
        let plans = self.outline_as(text, ships).await?;
        if !plans
            .iter()
            .any(|(_, plan)| matches!(plan, Plan::Unknown(_)))
        {
            return Ok(plans);
        }
        // It may have been made by another way; nothing else is so rare.
        self.reread_facts().await?;
        let mut plans = self.plan_once(text, ships);
        for (_, plan) in &mut plans {
            if let Plan::Unknown(name) = plan {
                let text = format!("relation \"{name}\" does not exist");
                *plan = Plan::Refused(Box::new(Refusal::error("42P01", text)));
            }
        }
        Ok(plans.into())
    }

    /// Plans a text, of which some statements may mean what others make.
    pub(super) async fn outline(&mut self, text: &str) -> Result<Plans> {
        self.outline_as(text, false).await
    }

    async fn outline_as(&mut self, text: &str, ships: bool) -> Result<Plans> {
        if self.memory.go_by(&self.facts(), &self.names) {
            self.server.statements.drop_all();
            // What was made or dropped may be what names mean.
            self.knows_names = false;
        }
        if !self.knows_names {
            self.learn_names().await?;
            self.memory.go_by(&self.facts(), &self.names);
        }
        if let Some(plans) = self.memory.plans(text, ships) {
            return Ok(plans);
        }
        let plans: Plans = self.plan_once(text, ships).into();
        self.memory.learn(text, ships, &plans);
        Ok(plans)
    }

    /// Settings may be others from here on.
    pub(super) fn forget_settings(&mut self) {
        self.knows_names = false;
        self.memory.forget_settings();
    }

    fn plan_once(&self, text: &str, ships: bool) -> Vec<(String, Plan)> {
        sql::plan(
            text,
            &self.facts(),
            &self.names,
            &self.hub.config.harmless,
            ships,
        )
    }

    /// Asks what names mean, and texts.
    async fn learn_names(&mut self) -> Result<()> {
        if self.status == b'E' {
            return Ok(());
        }
        let row = self.ask_again(NAMES).await?.row();
        let mut row = row.into_iter().flatten();
        let mut next = || row.next();
        if let (Some(path), Some(temporary), Some(strings), Some(times)) =
            (next(), next(), next(), next())
        {
            self.names.search_path = serde_json::from_str(&path).unwrap_or_default();
            self.names.temporary = serde_json::from_str(&temporary).unwrap_or_default();
            self.names.has_backslashes = strings != "on";
            self.names.has_other_times = !times.starts_with("ISO");
            self.knows_names = true;
        }
        Ok(())
    }

    /// Reads the catalog again: within a transaction as its session sees it, where it is what the member says if it cannot be read,
    /// which ends the transaction.
    pub(super) async fn reread_facts(&mut self) -> Result<Option<Box<Said>>> {
        if self.status == b'E' {
            return Ok(None);
        }
        if self.status == b'I' {
            // Everybody goes by it then, whatever this session has set, and whatever others read at the same time.
            if let Err(error) = self.hub.read_facts().await {
                tracing::warn!(%error, "the catalog cannot be read");
            }
            return Ok(None);
        }
        let reply = self.ask(sql::CATALOG).await?;
        if reply.error.is_some() {
            return Ok(reply.error);
        }
        if let Some(Ok(facts)) = reply.value().map(|json| sql::Facts::parse(&json)) {
            self.own_facts = Some(Arc::new(facts));
        }
        Ok(None)
    }
}
