//! What a text means to this session: by the catalog and the search path that it sees.

use std::sync::Arc;

use proxy::core::frame::Refusal;

use super::super::wire::Said;
use super::memory::Plans;
use super::{Result, Session};
use crate::sql::{self, Plan};

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
        if !self.knows_path {
            self.learn_path().await?;
        }
        if self.memory.go_by(&self.facts(), &self.names) {
            self.server.statements.drop_all();
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
        self.knows_path = false;
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

    async fn learn_path(&mut self) -> Result<()> {
        if self.status == b'E' {
            return Ok(());
        }
        let reply = self
            .ask("SELECT pg_catalog.array_to_json(pg_catalog.current_schemas(false))")
            .await?;
        if let Some(json) = reply.value() {
            self.names.search_path = serde_json::from_str(&json).unwrap_or_default();
            self.knows_path = true;
        }
        Ok(())
    }

    /// Reads the catalog as this session sees it: what the member says if it cannot be read, which ends the transaction.
    pub(super) async fn reread_facts(&mut self) -> Result<Option<Box<Said>>> {
        if self.status == b'E' {
            return Ok(None);
        }
        let reply = self.ask(sql::CATALOG).await?;
        if reply.error.is_some() {
            return Ok(reply.error);
        }
        if let Some(Ok(facts)) = reply.value().map(|json| sql::Facts::parse(&json)) {
            let facts = Arc::new(facts);
            if self.status == b'I' {
                *self.hub.facts.write() = facts;
            } else {
                self.own_facts = Some(facts);
            }
        }
        Ok(None)
    }
}
