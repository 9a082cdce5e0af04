//! What a session takes along, and giving it to a new one of the member.

use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use protocol::frame::Refusal;
use proxy::core::settings::Settings;
use proxy::driver::socket::Socket;

use super::super::wire::{Wire, reply};
use super::names::Names;
use super::{End, Result, Session};
use crate::core::cancelled::hides_warnings;
use crate::core::moving::{BONDS, Belongings, Holds, Proved, Statement, may_move};

/// How long the member may take to say what the session has.
const ASKED: Duration = Duration::from_secs(2);
/// Types from here on are not PostgreSQL's own and have other numbers on the other member.
const FIRST_OWN_TYPE: u32 = 16_384;

/// A session that is not given what it had is ended.
fn cannot_move(why: impl Into<String>) -> End {
    let refusal = Refusal::fatal(
        "57P01",
        "this manager is not primary any more, and the session cannot go on at the other one",
    );
    End::Told(Box::new(refusal.detail(why).hint(
        "Connect again, to the other one: name both in the connection string.",
    )))
}

impl Session {
    /// What the session has, if it can move with it.
    pub(super) async fn pack(&mut self) -> Result<Belongings> {
        let noted = Holds {
            bonds: self.keeps.affinities().collect(),
            listens: self.keeps.listens(),
        };
        // The member may be the reason why this manager is not primary any more.
        let asked = tokio::time::timeout(ASKED, self.ask(BONDS)).await;
        let holds = match asked {
            Ok(Ok(reply)) if reply.error.is_none() => Holds::told(&reply.row(), &noted),
            Ok(Ok(_)) => noted,
            _ => {
                // The answer may still come, and would be taken for that to the next question: nobody asks there any more.
                self.server = Wire::new(Socket::Gone);
                noted
            }
        };
        // A visitor's manager knows by itself.
        let secret = self.secret.as_ref();
        let proved = secret.map_or(Proved::Repeatably, |secret| secret.proved());
        may_move(&holds, proved).map_err(cannot_move)?;
        Ok(Belongings {
            startup: self.startup.clone(),
            settings: Settings::default().statements_to(&self.keeps.settings),
            prepares: self.keeps.restore(),
            statements: self.prepared.statements(),
        })
    }

    /// Gives a new session of the member what the one before had: the settings that it reports since.
    pub(super) async fn unpack(&mut self, belongings: &Belongings) -> Result<Vec<BytesMut>> {
        self.prepared = Names::default();
        self.keeps = proxy::core::session::SessionState::default();
        self.status = b'I';
        let mut reported = Vec::new();
        for (text, must) in [(&belongings.settings, true), (&belongings.prepares, false)] {
            if let Some(text) = text {
                self.repeat(text, must, &mut reported).await?;
            }
        }
        self.prepare_again(&belongings.statements).await?;
        Ok(reported)
    }

    /// Executes statements of which nothing is mirrored. What was prepared may not make sense any more, and then is not there.
    async fn repeat(&mut self, text: &str, must: bool, reported: &mut Vec<BytesMut>) -> Result<()> {
        self.hides_warnings |= hides_warnings(text);
        for source in pg_query::split_with_parser(text).unwrap_or_default() {
            frontend::query(source, &mut self.server.output)?;
            self.server.flush().await?;
            let mut reply = reply(&mut self.server).await?;
            reported.append(&mut reply.reported);
            match reply.error {
                None => self.note_text(source, false),
                Some(said) if must => {
                    let why = format!("It cannot be given: {source}: {}.", said.message);
                    return Err(cannot_move(why));
                }
                Some(_) => {}
            }
        }
        self.keeps.end(true);
        Ok(())
    }

    /// As above, in the extended protocol.
    async fn prepare_again(&mut self, statements: &[Statement]) -> Result<()> {
        for statement in statements {
            let known = |oid: &u32| if *oid < FIRST_OWN_TYPE { *oid } else { 0 };
            let types = statement.types.iter().map(known);
            frontend::parse(
                &statement.name,
                &statement.text,
                types,
                &mut self.server.output,
            )?;
            frontend::sync(&mut self.server.output);
        }
        // Together: there may be many, and answers are short.
        self.server.flush().await?;
        for statement in statements {
            if reply(&mut self.server).await?.error.is_none() {
                self.prepared.learn(statement);
            }
        }
        Ok(())
    }
}
