//! What operators, and the active, ask of a node. An order overrides pause and `nofailover`, never
//! the epoch.

use dax::ids::NodeName;

use super::{Ask, Cause, Decider, Decision, Effect, Machine, State};

impl Machine {
    /// Somebody asks for something; always answered.
    pub(super) fn asked(&mut self, ask: Ask) -> Vec<Effect> {
        let reply = match ask {
            Ask::Failover { to, force } => self.failover_asked(to, force),
            Ask::Enlist => self.enlist_asked(),
            Ask::Restart => self.restart_asked(),
        };
        vec![Effect::Reply(reply)]
    }

    fn failover_asked(&mut self, to: Option<NodeName>, force: bool) -> Result<(), String> {
        let me = &self.me;
        match self.state {
            State::Stalled if !force => Err(format!(
                "{me} reaches too few zones to stop PostgreSQL cleanly; try again when they answer, or force it: \
                 PostgreSQL is killed then"
            )),
            State::Serving | State::Stalled => self.hand_over_asked(to, force),
            State::HandingOver => Err(format!("{me} hands over already")),
            _ if to.as_ref().is_some_and(|to| to != me) => {
                let to = to.map_or(String::new(), |to| to.to_string());
                Err(format!("ask {to} itself, or the active; this is {me}"))
            }
            state if state.is_candidate() => {
                self.take_over(Decision {
                    cause: Cause::Forced,
                    by: Decider::Operator,
                });
                Ok(())
            }
            State::Looking => self.asked_while_looking(),
            State::Spare => Err(format!(
                "{me} is a spare, which holds nothing; ask a standby"
            )),
            State::TakingOver(_) => Err(format!("{me} is taking over already")),
            state => Err(format!(
                "{me} cannot do that while it is {state}; try again"
            )),
        }
    }

    fn hand_over_asked(&mut self, to: Option<NodeName>, force: bool) -> Result<(), String> {
        let me = &self.me;
        let successor = match to {
            Some(to) if to == *me => return Err(format!("{me} is the active already")),
            Some(to) if !force && !self.protection.could_follow(&to) => {
                return Err(format!(
                    "{to} is no standby that {me} knows to be alive and replaying; choose another one, or try again"
                ));
            }
            Some(to) => Some(to),
            None => {
                let best = self.protection.best_standby();
                if best.is_none() && !force {
                    return Err(format!(
                        "no standby could follow {me}: none is alive, or all are tagged nofailover"
                    ));
                }
                best
            }
        };
        self.successor = successor;
        self.go(State::HandingOver);
        Ok(())
    }

    fn restart_asked(&mut self) -> Result<(), String> {
        let me = &self.me;
        match self.state {
            State::Serving => {
                self.go(State::Restarting);
                Ok(())
            }
            State::Stalled => Err(format!(
                "{me} reaches too few zones to stop PostgreSQL cleanly; try again when they answer"
            )),
            state => Err(format!("{me} is {state} and cannot do that now")),
        }
    }

    fn enlist_asked(&mut self) -> Result<(), String> {
        match self.state {
            State::Spare => {
                self.enlisted = true;
                self.go(State::Attaching);
                Ok(())
            }
            state => Err(format!("{} is no spare now: it is {state}", self.me)),
        }
    }
}
