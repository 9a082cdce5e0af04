//! Positions with proof: how far the log is durable, told to proxies only while it is certain that nobody else has
//! acknowledged anything.
//!
//! ```text
//!   asked ──▶ waiting ──a round begins──▶ position read ──▶ epoch confirmed ──▶ answered
//!                ▲                                               │
//!                └────────── who asks meanwhile ─────────────────┘ and the next round begins
//! ```
//!
//! As with Raft's ReadIndex, an answer counts for whoever asked before its round began: the position is read after the
//! question came, so it covers every commit that was acknowledged before the question was asked; and the epoch is confirmed
//! after that, so nobody else can have acknowledged any. How long an active is frozen at whatever point does not matter.
//! One round serves any number of questions, and there is one at a time.
//!
//! Invariant: nobody is answered by a round that had begun when the question came.

use std::sync::Arc;

use async_trait::async_trait;
use dax::ids::Epoch;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use volume::lsn::Lsn;

/// How far the log is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The epoch that was confirmed.
    pub epoch: Epoch,
    /// The end of the last complete record that is durable. Every commit that was acknowledged before the question was asked
    /// is below, and a standby that replays gets there.
    pub durable: Lsn,
    /// Up to here the active itself shows all commits to whoever begins to read now. A standby may have shown more: it shows a
    /// commit whose log is durable, and the active may be late with it. `None` if nobody asked, or the agent is of release
    /// 0.1, which does not tell.
    pub shown: Option<Lsn>,
}

/// Where an active takes positions from.
#[async_trait]
pub trait PositionSource: Send + Sync + 'static {
    /// The end of the last complete record that is durable, as of now; why it is not known, if so.
    fn durable(&self) -> Result<Lsn, String>;

    /// Proves that the active's epoch stands, by asking from now on. Waits as long as nobody can tell.
    async fn confirm(&self) -> dax::Result<Epoch>;

    /// Up to where the active itself shows all commits to whoever begins to read from now on, for all that is known; no more
    /// than `durable`. Never waits long.
    async fn shown(&self, durable: Lsn) -> Lsn;
}

/// Which round answers whom. Pure: `A` is who asked.
#[derive(Debug)]
pub(super) struct Rounds<A> {
    waiting: Vec<A>,
    under_way: Option<Vec<A>>,
}

impl<A> Default for Rounds<A> {
    fn default() -> Self {
        Rounds {
            waiting: Vec::new(),
            under_way: None,
        }
    }
}

impl<A> Rounds<A> {
    /// Somebody asks: the next round that begins answers.
    pub(super) fn asked(&mut self, asker: A) {
        self.waiting.push(asker);
    }

    /// Those who are answered by the round that is under way.
    pub(super) fn under_way(&self) -> &[A] {
        self.under_way.as_deref().unwrap_or_default()
    }

    /// The round is over: these are answered by it.
    pub(super) fn over(&mut self) -> Vec<A> {
        self.under_way.take().unwrap_or_default()
    }

    /// Begins a round, if somebody waits and none is under way.
    pub(super) fn begin(&mut self) -> bool {
        let begins = self.under_way.is_none() && !self.waiting.is_empty();
        if begins {
            self.under_way = Some(std::mem::take(&mut self.waiting));
        }
        begins
    }
}

/// A question, and where its answer goes. One that is dropped is answered by "no".
pub(super) struct Question {
    number: u64,
    /// True if it asks what the active shows, too.
    shown: bool,
    to: mpsc::UnboundedSender<Answer>,
    is_answered: bool,
}

/// The answer to a question, by its number.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub number: u64,
    pub position: Result<Position, String>,
}

impl Question {
    pub(super) fn new(number: u64, shown: bool, to: mpsc::UnboundedSender<Answer>) -> Question {
        Question {
            number,
            shown,
            to,
            is_answered: false,
        }
    }

    pub(super) fn answer(mut self, position: Result<Position, String>) {
        self.tell(position);
    }

    fn tell(&mut self, position: Result<Position, String>) {
        self.is_answered = true;
        let number = self.number;
        // Who asked may have gone.
        let _ = self.to.send(Answer { number, position });
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if !self.is_answered {
            self.tell(Err("this node is not the active".to_owned()));
        }
    }
}

/// Answers questions for as long as it lives.
pub(super) struct Answering {
    pub(super) questions: mpsc::UnboundedSender<Question>,
    task: JoinHandle<()>,
}

impl Answering {
    pub(super) fn start(source: Arc<dyn PositionSource>) -> Answering {
        let (questions, asked) = mpsc::unbounded_channel();
        Answering {
            questions,
            task: tokio::spawn(answer_all(source, asked)),
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer_all(source: Arc<dyn PositionSource>, mut asked: mpsc::UnboundedReceiver<Question>) {
    let mut rounds = Rounds::default();
    while let Some(question) = asked.recv().await {
        rounds.asked(question);
        // Those who have come by now are in time; those who come during the round are for the next.
        while let Ok(question) = asked.try_recv() {
            rounds.asked(question);
        }
        if rounds.begin() {
            let shown = rounds.under_way().iter().any(|question| question.shown);
            let position = round(source.as_ref(), shown).await;
            for question in rounds.over() {
                question.answer(position.clone());
            }
        }
    }
}

/// First the position, then the proof, and if it is `asked` what is shown of it.
async fn round(source: &dyn PositionSource, asked: bool) -> Result<Position, String> {
    let durable = source.durable()?;
    let shown = async {
        match asked {
            true => Some(source.shown(durable).await),
            false => None,
        }
    };
    let (epoch, shown) = tokio::join!(source.confirm(), shown);
    Ok(Position {
        epoch: epoch.map_err(|error| error.to_string())?,
        durable,
        shown,
    })
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// What must be caught.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Flaw {
        /// Who comes during a round is answered by it.
        JoinsUnderWay,
        /// The epoch is not confirmed.
        PositionWithoutProof,
    }

    /// A model in steps: an active that may be frozen between any two of them, and another node that takes over.
    struct World {
        /// Who owns the highest epoch: the node under test owns 1.
        owner: u32,
        /// The last commit that was acknowledged, by whomever: commits are counted.
        acknowledged: u64,
        /// The last that the node under test knows: its own, or what it took over with.
        own: u64,
        rounds: Rounds<u64>,
        round: Option<Under>,
        flaw: Option<Flaw>,
    }

    #[derive(Debug, Default)]
    struct Under {
        durable: Option<u64>,
        confirmed: Option<bool>,
    }

    impl World {
        fn step(&mut self, rng: &mut SmallRng) -> Result<(), String> {
            match rng.random_range(0..20) {
                0..6 => {
                    self.acknowledged += 1;
                    if self.owner == 1 {
                        self.own = self.acknowledged;
                    }
                }
                6 if rng.random_ratio(1, 10) => self.owner = 2,
                6..12 => self.rounds.asked(self.acknowledged),
                _ => return self.work(),
            }
            Ok(())
        }

        /// The node under test does the next thing, if it is not frozen.
        fn work(&mut self) -> Result<(), String> {
            let Some(round) = &mut self.round else {
                if self.rounds.begin() {
                    self.round = Some(Under::default());
                }
                return Ok(());
            };
            if round.durable.is_none() {
                round.durable = Some(self.own);
                return Ok(());
            }
            let proved = self.flaw == Some(Flaw::PositionWithoutProof) || self.owner == 1;
            let Some(confirmed) = round.confirmed else {
                round.confirmed = Some(proved);
                return Ok(());
            };
            let durable = round.durable.unwrap_or_default();
            self.round = None;
            let mut answered = self.rounds.over();
            if self.flaw == Some(Flaw::JoinsUnderWay) {
                answered.append(&mut self.rounds.waiting);
            }
            let missed = answered
                .into_iter()
                .find(|before| confirmed && *before > durable);
            missed.map_or(Ok(()), |before| {
                Err(format!(
                    "told {durable}, although {before} was acknowledged before"
                ))
            })
        }
    }

    fn run(seed: u64, flaw: Option<Flaw>) -> Result<(), String> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut world = World {
            owner: 1,
            acknowledged: 0,
            own: 0,
            rounds: Rounds::default(),
            round: None,
            flaw,
        };
        (0..400).try_for_each(|_| world.step(&mut rng))
    }

    #[test]
    fn a_position_covers_what_was_acknowledged_before_it_was_asked_for() {
        for seed in 0..2000 {
            assert_eq!(run(seed, None), Ok(()), "seed {seed}");
        }
    }

    #[test]
    fn every_flaw_is_caught() {
        for flaw in [Flaw::JoinsUnderWay, Flaw::PositionWithoutProof] {
            let caught = (0..2000).find(|seed| run(*seed, Some(flaw)).is_err());
            assert!(caught.is_some(), "{flaw:?} is not caught");
        }
    }

    #[test]
    fn a_round_serves_all_who_asked_before_it() {
        let mut rounds = Rounds::default();
        assert!(!rounds.begin());
        rounds.asked(1);
        rounds.asked(2);
        assert!(rounds.begin());
        rounds.asked(3);
        assert!(!rounds.begin(), "one at a time");
        assert_eq!(rounds.over(), [1, 2]);
        assert!(rounds.begin());
        assert_eq!(rounds.over(), [3]);
        assert!(!rounds.begin());
    }

    #[tokio::test]
    async fn a_question_that_is_dropped_is_answered() {
        let (to, mut answers) = mpsc::unbounded_channel();
        drop(Question::new(7, false, to));
        let answer = answers.recv().await.unwrap();
        assert!(answer.number == 7 && answer.position.is_err());
    }
}
