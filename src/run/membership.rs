//! A node's part in a job whose nodes find each other: what it has heard, where it stands, and what follows.

use crate::rendezvous::agree::record::FORMAT;
use crate::rendezvous::agree::{End, Member, Offer, Record, Roll, Seat, Standing, State, Step, Why, step};
use crate::rendezvous::master::Server;
use crate::rendezvous::tie::{News, Tie};
use crate::sys::clock;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use tracing::{info, warn};

/// Why the ranks of a round are stopped from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    /// All stop; or, without a reason, the others have gone on without this node.
    Told(Option<Why>, Option<End>),
    /// This node is not let in any more.
    Refused(String),
    /// There has been no contact for so long that nobody can know what the others do.
    OutOfContact(String),
}

/// A node among others.
pub struct Membership {
    tie: Box<dyn Tie>,
    /// The master, where this node serves it.
    server: Option<Server>,
    /// Where the others are met, for people.
    at: String,
    seat: Seat,
    offer: Offer,
    state: Option<State>,
    members: Vec<Member>,
    refused: Option<String>,
    /// Since when there is no contact, and why.
    lost: Option<(Duration, String)>,
    /// How long ranks run on without contact.
    patience: Duration,
}

impl Membership {
    /// The record that a node begins with.
    pub fn record(offer: &Offer, standing: &Standing) -> String {
        let record = Record { format: FORMAT, offer: offer.clone(), standing: standing.clone() };
        // Nothing in it can fail to be JSON.
        serde_json::to_string(&record).unwrap_or_default()
    }

    /// A node that has just put such a record there, by this tie and under this id.
    pub fn new(
        (tie, server): (Box<dyn Tie>, Option<Server>),
        at: String,
        id: &str,
        offer: Offer,
        patience: Duration,
    ) -> Self {
        Self {
            tie,
            server,
            at,
            seat: Seat::new(id),
            offer,
            state: None,
            members: Vec::new(),
            refused: None,
            lost: None,
            patience,
        }
    }

    /// Where the others are met, for people.
    pub fn at(&self) -> &str {
        &self.at
    }

    /// What this node brings.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Says where this node stands now.
    pub fn put(&mut self, standing: Standing) {
        self.seat.standing = standing;
        self.tie.put(&Self::record(&self.offer, &self.seat.standing));
    }

    /// Takes in what has come; once the descriptor is readable. The roll, if there is a new one.
    pub fn hear(&mut self) -> Option<Roll> {
        let mut roll = None;
        for news in self.tie.heard() {
            match news {
                News::State { state, members } => roll = self.heard(&state, members.as_deref()).or(roll),
                News::Lost { why } if self.lost.is_none() => {
                    if matches!(self.seat.standing, Standing::Runs { .. }) {
                        let limit = self.patience.as_secs_f64();
                        warn!("no contact with {}: {why}; the ranks run on, for {limit} s at most", self.at);
                    }
                    self.lost = Some((clock::now(), why));
                }
                News::Lost { why } => self.lost = self.lost.take().map(|(since, _)| (since, why)),
                News::Back => {
                    if let Some((since, _)) = self.lost.take() {
                        info!("contact with {} again, after {:.1} s", self.at, (clock::now() - since).as_secs_f64());
                    }
                }
                News::Refused { why } => self.refused = Some(why),
            }
        }
        roll
    }

    fn heard(&mut self, state: &str, members: Option<&str>) -> Option<Roll> {
        let state: State = match serde_json::from_str(state) {
            Ok(state) => state,
            Err(error) => {
                self.refused = Some(format!("what the coordinator at {} says cannot be understood: {error}", self.at));
                return None;
            }
        };
        let members: Option<Vec<Member>> = members.and_then(|text| serde_json::from_str(text).ok());
        let told = self.seat.told;
        let is_newest = self.seat.hear(&state, members.as_deref());
        if let Some(members) = members.filter(|_| self.seat.told > told) {
            self.members = members;
        }
        if !is_newest {
            return None;
        }
        let known = self.state.as_ref().and_then(|known| known.roll.as_ref());
        let roll = state.roll.clone().filter(|roll| known != Some(roll));
        self.state = Some(state);
        roll
    }

    /// What follows from all that is known.
    pub fn step(&self) -> Step {
        match (&self.refused, &self.state) {
            (Some(why), _) => Step::Refused(why.clone()),
            (None, Some(state)) => step(&self.seat, state),
            (None, None) => Step::Wait,
        }
    }

    /// Whether what runs here has to stop.
    pub fn halt(&self) -> Option<Halt> {
        if let Some(why) = &self.refused {
            return Some(Halt::Refused(why.clone()));
        }
        match self.step() {
            Step::Stop { why, end } => Some(Halt::Told(why, end)),
            _ => self.out_of_contact().map(Halt::OutOfContact),
        }
    }

    /// Why there is no contact, once that is so for too long.
    pub fn out_of_contact(&self) -> Option<String> {
        let (since, why) = self.lost.as_ref()?;
        let gone = clock::now().saturating_sub(*since);
        (gone >= self.patience).then(|| format!("no contact with {} for {:.0} s: {why}", self.at, gone.as_secs_f64()))
    }

    /// Why there is no contact just now, if there is none.
    pub fn no_contact(&self) -> Option<&str> {
        self.lost.as_ref().map(|(_, why)| why.as_str())
    }

    /// Whether nothing may run here any more, however it was asked to stop: others may soon begin without this node.
    pub fn is_overdue(&self) -> bool {
        self.lost.as_ref().is_some_and(|(since, _)| clock::now() >= *since + self.last())
    }

    fn last(&self) -> Duration {
        self.patience * 4 / 3
    }

    /// When `halt` and `is_overdue` want to be asked though nothing has come.
    pub fn due(&self) -> Option<Duration> {
        let (since, _) = self.lost.as_ref()?;
        let halt = *since + self.patience;
        Some(if clock::now() < halt { halt } else { *since + self.last() })
    }

    /// Whether the job's state is known.
    pub fn is_in_touch(&self) -> bool {
        self.state.is_some()
    }

    /// The job's state, as far as it is known.
    pub fn state(&self) -> Option<&State> {
        self.state.as_ref()
    }

    /// The members of the last round, and this node's place among them.
    pub fn round(&self) -> Option<(&[Member], usize)> {
        let own = self.members.iter().position(|member| member.id == self.seat.id)?;
        Some((&self.members, own))
    }

    /// Whether its ranks have ended well.
    pub fn is_through(&self) -> bool {
        matches!(self.seat.standing, Standing::Done { .. })
    }

    /// Leaves.
    pub fn close(&mut self, patience: Duration) -> io::Result<()> {
        let left = self.tie.close(patience);
        // Who serves goes last: the others are still to hear how it ends.
        if let Some(mut server) = self.server.take() {
            server.close(patience);
        }
        left
    }
}

impl AsFd for Membership {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tie.as_fd()
    }
}
