//! How the nodes of an elastic job in the older launcher's words find each other, what this one runs with the others, and
//! what it says of it.

use super::conclude::Circumstances;
use super::lay_out::Older;
use super::node::Door;
use super::paddle;
use super::refusal::{Refusal, unmet};
use super::rounds::{GoOn, Joined, Meeting, Part, Round};
use super::tie::{self, Advertised};
use crate::dialect::{Binding, paddle_legacy};
use crate::log::verdict::Verdict;
use crate::model::{Endpoint, EnvPatch, Exit};
use crate::plan::devices::Share;
use crate::plan::legacy::{self, Member as Rank, Site};
use crate::plan::{HostFacts, RankPlan};
use crate::rendezvous::agree::{Member, Offer, OnFailure, OnLoss, Roll, Rules};
use crate::run::launch::{Launch, Launched};
use crate::run::pre_hook::{self, Ran};
use crate::run::{self, logs};
use crate::spec::LaunchSpec;
use crate::spec::job::Job;
use crate::spec::legacy::{Layout, LegacySpec};
use crate::spec::older_elastic::Elastic;
use crate::spec::options::Vars;
use crate::supervise::{ChildId, Note, Outcome, Policy};
use core::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;
use tracing::{error, info, warn};

/// With this status a rank asks that all be started again.
const AGAIN: i32 = 102;
/// How long after that they are.
const BREATH: Duration = Duration::from_secs(1);
/// What a node says of its ranks' devices, beside what all nodes say.
const DEVICES: &str = "devices";

/// A node that is to meet others.
pub struct OlderMeeting<'a> {
    /// What was asked.
    pub spec: &'a LaunchSpec,
    /// The same, in the older launcher's words, and what of it makes nodes find each other.
    pub older: (&'a LegacySpec, &'a Elastic),
    /// The launcher's variables.
    pub vars: &'a Vars,
    /// What is known of this machine.
    pub facts: &'a HostFacts,
    /// What runs here.
    pub own: &'a Older,
    /// The address that others reach it by.
    pub advertised: Advertised,
    /// What this machine calls itself.
    pub host: String,
}

/// The request of a node that has this address.
pub fn at(spec: &LaunchSpec, address: &str) -> LaunchSpec {
    let mut spec = spec.clone();
    if let Job::Legacy(older) = &mut spec.job
        && let Layout::Nodes(list, _) = &mut older.layout
        && let Some(host) = list.hosts.first_mut()
    {
        host.name = address.to_owned();
        list.own = Some(address.to_owned());
    }
    spec
}

impl OlderMeeting<'_> {
    fn rules(&self) -> Rules {
        let elastic = self.older.1;
        Rules {
            door: "paddle, older".into(),
            at_once: Some(elastic.usual),
            again: Some(AGAIN),
            on_failure: OnFailure::Hold,
            on_loss: OnLoss::Regroup,
            ..tie::rules(&elastic.meeting)
        }
    }

    fn offer(&self) -> Offer {
        let (site, elastic) = (&self.own.site, self.older.1);
        let devices = paddle_legacy::world_devices(site.here().iter().map(|rank| &rank.share.binding));
        Offer {
            name: name(elastic.place, &self.advertised.address, &self.facts.pod_name),
            rank: elastic.meeting.rank,
            host: self.host.clone(),
            address: self.advertised.address.clone(),
            address_from: self.advertised.from.clone(),
            ranks: site.here().len(),
            device: self.own.ground.visible.kind.to_owned(),
            endpoints: site.here().iter().map(|rank| rank.endpoint.to_string()).collect(),
            rules: self.rules(),
            version: env!("CARGO_PKG_VERSION").into(),
            more: [(DEVICES.to_owned(), devices)].into(),
            ..Offer::default()
        }
    }

    fn site(&self, round: &Round<'_>) -> Result<Site, Refusal> {
        let mut nodes = Vec::new();
        let mut first = 0;
        for (place, member) in round.members.iter().enumerate() {
            let mut ranks = ranks(member, first, self.own.ground.visible.kind)?;
            if place == round.own {
                // Those of this node are known better than by what it says of them.
                let own = self.own.site.here().iter().zip(first..);
                ranks = own.map(|(rank, number)| Rank { rank: number, ..rank.clone() }).collect();
            }
            first += ranks.len();
            nodes.push(ranks);
        }
        let interface = self.advertised.interface.clone().filter(|_| nodes.len() > 1);
        Ok(Site { nodes, own: round.own, ports_from: String::new(), warnings: Vec::new(), interface })
    }
}

/// What nodes are ordered by: those with a place first, the others by address.
fn name(place: Option<usize>, address: &str, pod: &str) -> String {
    match (place, address.parse::<Ipv4Addr>()) {
        (Some(place), _) => format!("{place:08}-{pod}"),
        (None, Ok(address)) => format!("{:03?}-{pod}", address.octets()).replace(", ", "."),
        (None, Err(_)) => format!("~{address}-{pod}"),
    }
}

/// The ranks of a node, as it tells of them; the first has this number.
fn ranks(member: &Member, first: usize, kind: &str) -> Result<Vec<Rank>, Refusal> {
    let Offer { host, address, endpoints, more, .. } = &member.offer;
    let read: Option<Vec<Endpoint>> = endpoints.iter().map(|text| Endpoint::parse(text)).collect();
    let Some(read) = read.filter(|read| !read.is_empty()) else {
        let why = "says where its ranks listen in words that nobody understands";
        return Err(unmet(format!("node {host} ({address}) {why}")));
    };
    let mut devices = more.get(DEVICES).map_or("", String::as_str).split(',');
    let share = |indices: &str| Share {
        binding: match indices {
            "" => Binding::Cpu,
            _ => Binding::Selected { kind: kind.to_owned(), indices: indices.replace(':', ",") },
        },
        lists: EnvPatch::new(),
    };
    let rank = |(endpoint, rank)| Rank { rank, endpoint, share: share(devices.next().unwrap_or("")) };
    Ok(read.into_iter().zip(first..).map(rank).collect())
}

fn asks_again(launched: &Launched) -> bool {
    matches!(launched.report.outcome, Outcome::Failed { exit: Exit::Code(AGAIN), .. })
}

/// `['10.0.0.1:6170', '10.0.0.2:6170']`
fn listed(members: &[Member]) -> String {
    let first = |member: &Member| format!("'{}'", member.offer.endpoints.first().map_or("", String::as_str));
    format!("[{}]", members.iter().map(first).collect::<Vec<_>>().join(", "))
}

impl Meeting for OlderMeeting<'_> {
    fn join(&self, go_on: GoOn<'_>) -> Result<Joined, Refusal> {
        let (min, max) = self.older.1.meeting.nodes;
        info!("start job with ElasticLevel.{}", if min == max { "FAULT_TOLERANCE" } else { "ELASTIC" });
        tie::join(&self.older.1.meeting, self.offer(), "", go_on)
    }

    fn prepare(&self, round: &Round<'_>, go_on: &mut dyn FnMut() -> bool) -> Result<(), Refusal> {
        info!("ready with hosts {}", listed(round.members));
        let Some(command) = &self.older.1.pre_hook else { return Ok(()) };
        info!("execute pre_hook...");
        let site = self.site(round)?;
        let firsts: Vec<Endpoint> =
            site.nodes.iter().filter_map(|ranks| Some(ranks.first()?.endpoint.clone())).collect();
        let vars = [
            ("PADDLE_TRAINER_ID", round.own.to_string()),
            ("PADDLE_TRAINERS", site.hosts()),
            ("PADDLE_TRAINER_ENDPOINTS", Endpoint::join(&firsts)),
            ("DISTRIBUTED_TRAINER_ENDPOINTS", Endpoint::join(&site.endpoints())),
        ];
        let limit = self.patience();
        match pre_hook::run(command, &vars, limit, go_on) {
            Ok(Ran::Well(said)) => info!("pre_hook exec result: {said}"),
            Ok(Ran::Complained(said)) => warn!("pre_hook exec failed: {said}"),
            Ok(Ran::TooLong) => warn!("pre_hook exec failed: killed after {} s", limit.as_secs()),
            Ok(Ran::Stopped) => {}
            Err(error) => warn!("pre_hook exec failed: {}", logs::plain(&error)),
        }
        Ok(())
    }

    fn part(&self, round: &Round<'_>) -> Result<Part, Refusal> {
        let site = self.site(round)?;
        let about = (&site, &self.own.ground, &self.own.itself);
        let plan = legacy::plan(self.spec, self.older.0, self.vars, self.facts, about).map_err(unmet)?;
        run::legacy::write_endpoints(Path::new(&self.facts.log_dir), &site.endpoints())
            .and_then(|()| logs::write_backups(&plan))
            .map_err(|error| unmet(format!("--log_dir {}: {}", self.facts.log_dir, logs::plain(&error))))?;
        let shown = paddle::shown(self.spec, &plan, &self.host);
        Ok(Part { plan, shown, store: Vec::new() })
    }

    fn patience(&self) -> Duration {
        self.older.1.meeting.join
    }

    fn restart(&self, launched: &Launched, _failures: u32) -> Result<Duration, String> {
        Ok(if asks_again(launched) { BREATH } else { Duration::ZERO })
    }

    fn leaves_alone(&self) -> bool {
        true
    }

    fn roll_call(&self, roll: Option<&Roll>) -> Option<String> {
        let (min, max) = self.older.1.meeting.nodes;
        let np = if min == max { max.to_string() } else { format!("{min}:{max}") };
        let hosts = roll.map_or(String::new(), |roll| format!(" with hosts [{}]", roll.here.join(", ")));
        let waits = "wait for timeout, you can set value by PADDLE_ELASTIC_TIMEOUT";
        let enough = roll.is_some_and(|roll| roll.ready >= min);
        Some(format!("not ready for np {np}{hosts}{}", if enough { format!("; {waits}") } else { String::new() }))
    }
}

/// The door of such a job: that of others, with the older launcher's last words and exit statuses.
pub struct OlderDoor<'a> {
    /// That of others.
    pub door: &'a dyn Door,
    /// What was asked.
    pub elastic: &'a Elastic,
}

impl Door for OlderDoor<'_> {
    fn circumstances(&self) -> &Circumstances {
        self.door.circumstances()
    }

    fn begins(&self, launch: &Launch<'_>) {
        self.door.begins(launch);
    }

    fn runs(&self, launch: &Launch<'_>) {
        self.door.runs(launch);
    }

    fn started(&self, id: ChildId, pid: i32, launch: &Launch<'_>) {
        self.door.started(id, pid, launch);
    }

    fn notes(&self, note: &Note, policy: &Policy, launch: &Launch<'_>) {
        self.door.notes(note, policy, launch);
    }

    fn status(&self, launched: &Launched) -> i32 {
        match launched.report.outcome {
            Outcome::Failed { .. } => self.elastic.after_failure.status(),
            _ => self.door.status(launched),
        }
    }

    fn ends(&self, launch: &Launch<'_>, launched: &Launched, status: i32, verdict: Option<&Verdict>) {
        if matches!(launched.report.outcome, Outcome::Failed { .. }) {
            for (RankPlan { rank, .. }, end) in launch.plan.ranks.iter().zip(&launched.report.ranks) {
                if let Some(exit) = end.exit.filter(|exit| !end.told && !exit.is_success()) {
                    error!("ABORT!!! ABORT!!! ABORT!!!");
                    error!("ERROR rank {rank} error with exit code {}, check log for detail.", exit.returncode());
                }
            }
        }
        self.door.ends(launch, launched, status, verdict);
    }
}
