//! What is known of one child.

use super::{Part, RankReport};
use crate::model::Exit;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(super) struct Child {
    pub part: Part,
    pub state: State,
    /// The launcher has signalled it: what becomes of it then is no failure of its own.
    pub told: bool,
    pub killed: bool,
    pub started: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    Waiting,
    Starting,
    Alive,
    Ended { exit: Exit, lived: Duration },
    Abandoned,
    NotStarted(String),
}

impl Child {
    pub fn new(part: Part) -> Self {
        Self { part, state: State::Waiting, told: false, killed: false, started: Duration::ZERO }
    }

    pub fn has_ended_well(&self) -> bool {
        matches!(self.state, State::Ended { exit, .. } if exit.is_success())
    }

    pub fn report(&self) -> RankReport {
        let (exit, lived) = match self.state {
            State::Ended { exit, lived } => (Some(exit), Some(lived)),
            _ => (None, None),
        };
        let abandoned = self.state == State::Abandoned;
        RankReport {
            exit,
            not_started: if let State::NotStarted(why) = &self.state { Some(why.clone()) } else { None },
            told: self.told,
            killed: self.killed,
            abandoned,
            started_at: (exit.is_some() || abandoned).then_some(self.started),
            lived,
        }
    }
}
