//! A node's part in a job whose nodes find each other: what it has heard, where it stands, and what follows.

use super::contact::{Keeper, Lost, Verdict};
use crate::model::Endpoint;
use crate::rendezvous::agree::record::FORMAT;
use crate::rendezvous::agree::{
    End, Member, Offer, OnLoss, Phase, Record, Roll, Seat, Standing, State, Step, Stops, Why, step,
};
use crate::rendezvous::master::Server;
use crate::rendezvous::tie::{News, Tie};
use crate::sys::clock;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use tracing::{info, warn};

/// Why the ranks of a round are stopped from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one a round")]
pub enum Halt {
    /// All stop; or, without a reason, the others have gone on without this node.
    Told(Option<Why>, Option<End>),
    /// This node is not let in any more.
    Refused(String),
    /// There has been no contact for so long that nobody can know what the others do.
    OutOfContact(String),
}

/// How long leaving may take where nothing has begun.
const UNBEGUN: Duration = Duration::from_millis(500);

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
    lost: Option<Lost>,
    /// Who keeps what is shared, and after what silence it takes a node for lost.
    keeper: Keeper,
    lease: Duration,
    /// When what follows from a loss is to be looked at again.
    due: Option<Duration>,
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
        (keeper, lease): (Keeper, Duration),
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
            keeper,
            lease,
            due: None,
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

    /// Says why its ranks are being stopped, while they are.
    pub fn stops(&mut self, why: Stops) {
        if let Standing::Runs { round } = self.seat.standing {
            self.put(Standing::Stops { round, why });
        }
    }

    /// Takes in what has come; once the descriptor is readable. The roll, if there is a new one.
    pub fn hear(&mut self) -> Option<Roll> {
        let mut roll = None;
        for news in self.tie.heard() {
            match news {
                News::State { state, members } => roll = self.heard(&state, members.as_deref()).or(roll),
                News::Lost { why } if self.lost.is_none() => {
                    if matches!(self.seat.standing, Standing::Runs { .. }) {
                        let limit = match &self.keeper {
                            Keeper::Master => self.lease * 3 / 10,
                            Keeper::Etcd(_, patience) => *patience,
                        };
                        warn!(
                            "no contact with {}: {why}; the ranks run on, for {} s at most",
                            self.at,
                            limit.as_secs_f64()
                        );
                    }
                    let now = clock::now();
                    self.lost = Some(Lost::new(now, why));
                    self.due = Some(now);
                }
                News::Lost { why } => {
                    if let Some(lost) = &mut self.lost {
                        lost.why = why;
                    }
                }
                News::Back => {
                    self.due = None;
                    if let Some(lost) = self.lost.take() {
                        let gone = (clock::now() - lost.since).as_secs_f64();
                        info!("contact with {} again, after {gone:.1} s", self.at);
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
        // The master's states end with it; at etcd a job's name may be taken again.
        let is_anothers = state.round < self.seat.told || state.serial < self.seat.serial;
        if is_anothers && matches!(self.keeper, Keeper::Etcd(..)) {
            let why = "the job that this node was part of is not there any more: it has ended without it, or etcd has lost its data";
            self.refused = Some(format!("{}: {why}", self.at));
            return None;
        }
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
    pub fn halt(&mut self) -> Option<Halt> {
        if let Some(why) = &self.refused {
            return Some(Halt::Refused(why.clone()));
        }
        match self.step() {
            Step::Stop { why, end } => Some(Halt::Told(why, end)),
            _ => self.out_of_contact().map(|(why, _)| Halt::OutOfContact(why)),
        }
    }

    /// Why there is no contact, once that is so for too long; and the time in which ranks have to end, if others may go on
    /// without this node.
    pub fn out_of_contact(&mut self) -> Option<(String, Option<Duration>)> {
        let lost = self.lost.as_mut()?;
        let now = clock::now();
        let others = self.members.iter().filter(|member| member.offer.address != self.offer.address);
        let others: Vec<(String, u16)> =
            others.filter_map(|member| place_of(&member.offer)).map(|at| (at.host, at.port)).collect();
        let verdict = lost.verdict(now, &self.keeper, self.lease, &others);
        let (at, why, gone) = (&self.at, &lost.why, now.saturating_sub(lost.since).as_secs_f64());
        match verdict {
            Verdict::Until(due) => {
                self.due = Some(due);
                None
            }
            Verdict::CutOff(within) if self.keeper == Keeper::Master => {
                self.due = None;
                Some((format!("no contact with {at} for {gone:.1} s: {why}"), Some(within)))
            }
            Verdict::CutOff(within) => {
                self.due = self.keeper.gives_up_at(lost.since);
                let why = format!("this node is cut off: neither {at} nor any other node answers ({why})");
                Some((why, Some(within)))
            }
            Verdict::TooLong => {
                self.due = None;
                Some((format!("no contact with {at} for {gone:.0} s: {why}"), None))
            }
        }
    }

    /// Whether it may take part again once it is back from where nobody answers: the job goes on elsewhere, and so does
    /// whoever keeps what is shared.
    pub fn may_come_back(&self) -> bool {
        matches!(self.keeper, Keeper::Etcd(..)) && self.offer.rules.on_loss == OnLoss::Regroup
    }

    /// Why there is no contact just now, if there is none.
    pub fn no_contact(&self) -> Option<&str> {
        self.lost.as_ref().map(|lost| lost.why.as_str())
    }

    /// When `halt` and `out_of_contact` want to be asked though nothing has come.
    pub fn due(&self) -> Option<Duration> {
        self.due
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

    /// Whether it has never run anything.
    pub fn is_unbegun(&self) -> bool {
        self.seat.standing == Standing::Ready { seen: 0 } && self.seat.round.is_none()
    }

    /// Whether its ranks have ended well.
    pub fn is_through(&self) -> bool {
        matches!(self.seat.standing, Standing::Done { .. })
    }

    /// Leaves.
    pub fn close(&mut self, patience: Duration) -> io::Result<()> {
        // Where nothing has begun nobody is to be told of an end.
        let begun = self.state.as_ref().is_some_and(|state| state.phase != Phase::Gathering);
        let patience = if begun { patience } else { patience.min(UNBEGUN) };
        let left = self.tie.close(patience);
        // Who serves goes last: the others are still to hear how it ends.
        if let Some(mut server) = self.server.take() {
            server.close(patience);
        }
        left
    }
}

/// Where a node's machine can be asked whether it is there.
fn place_of(offer: &Offer) -> Option<Endpoint> {
    let known = [Some(&offer.master), offer.endpoints.first()];
    known.into_iter().flatten().find_map(|text| Endpoint::parse(text))
}

impl AsFd for Membership {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tie.as_fd()
    }
}
