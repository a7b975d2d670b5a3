//! When the ranks of a node have to stop, and whether they are asked first: by what its rendezvous backend reports.

use rlaunch::protocol::{
    JobEnd, JobPhase, JobRules, JobState, LeaseTerms, NodeInfo, NodeRecord, NodeStatus, OnNodeLoss, RankHang,
    RoundMember, RoundStopCause, member_list, record,
};
use rlaunch::rendezvous::backend::{BackendEvent, RendezvousBackend};
use rlaunch::rendezvous::lease::NodeLease;
use rlaunch::rendezvous::questions::{QuestionListener, QuestionSender};
use rlaunch::run::multi_node::membership::{BackendKind, Membership, RoundStop};
use rlaunch::supervise::RankStop;
use rlaunch::sys::clock;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Events = Arc<Mutex<Vec<BackendEvent>>>;

struct Backend {
    events: Events,
    puts: Arc<Mutex<Vec<String>>>,
    fd: File,
}

impl AsFd for Backend {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl RendezvousBackend for Backend {
    fn put(&mut self, record: &str) {
        self.puts.lock().unwrap().push(record.to_owned());
    }

    fn take_events(&mut self) -> Vec<BackendEvent> {
        self.events.lock().unwrap().drain(..).collect()
    }

    fn connect_questions(&mut self, _: QuestionListener) -> Box<dyn QuestionSender> {
        unreachable!("nothing is asked here")
    }

    fn close(&mut self, _: Duration) -> io::Result<()> {
        Ok(())
    }
}

/// The node `a`, whose ranks run in round 1, and its lease.
struct Job {
    membership: Membership,
    events: Events,
    puts: Arc<Mutex<Vec<String>>>,
    lease: Arc<NodeLease>,
    serial: u64,
}

impl Job {
    fn new(on_loss: OnNodeLoss) -> Self {
        let mut job = Self::waiting(on_loss);
        job.lease.renewed(1, clock::boot());
        job.hear(BackendEvent::Joined { lease: 1 });
        job.state(1, JobPhase::Running);
        job.membership.publish(NodeStatus::runs(1));
        assert_eq!(job.membership.round_stop(), None);
        job
    }

    /// Before its first round.
    fn waiting(on_loss: OnNodeLoss) -> Self {
        let terms = LeaseTerms { heartbeat_timeout: Duration::from_secs(10), loss_timeout: Duration::ZERO, on_loss };
        let (events, lease) = (Events::default(), Arc::new(NodeLease::new().unwrap()));
        let puts: Arc<Mutex<Vec<String>>> = Arc::default();
        let fd = File::open("/dev/null").unwrap();
        let backend = Backend { events: Arc::clone(&events), puts: Arc::clone(&puts), fd };
        let info = NodeInfo { rules: JobRules { on_loss, ..JobRules::default() }, ..NodeInfo::default() };
        let kind = (BackendKind::Etcd, terms, Arc::clone(&lease));
        let membership = Membership::new((Box::new(backend), None), "etcd at h:1".into(), "a", info, kind);
        Self { membership, events, puts, lease, serial: 0 }
    }

    fn hear(&mut self, event: BackendEvent) {
        self.events.lock().unwrap().push(event);
        self.membership.receive();
    }

    fn state(&mut self, round: u64, phase: JobPhase) {
        self.serial += 1;
        let state = JobState {
            format: record::FORMAT,
            serial: self.serial,
            round,
            failures: 0,
            phase,
            excluded: Default::default(),
            last_failed: None,
            newcomers: Default::default(),
            stopped_at: None,
            held_failure: None,
            to_receive_end: Default::default(),
            refused: Default::default(),
            warnings: Vec::new(),
            ranks_may_run: false,
            participants: None,
        };
        let members = [("a", NodeInfo::default()), ("b", NodeInfo::default())];
        let list = RoundMember::list(members.iter().map(|(id, info)| (*id, info)));
        let members = Some(member_list::encode(&list));
        self.hear(BackendEvent::State { state: serde_json::to_string(&state).unwrap(), members });
    }

    fn lapse(&self) {
        self.lease.renewed(1, clock::boot().saturating_sub(Duration::from_secs(9)));
    }

    /// Why its ranks stop, in a word, and whether at once.
    fn stop(&self) -> Option<(&'static str, bool)> {
        let (why, how) = self.membership.round_stop()?;
        let word = match why {
            RoundStop::ByOthers { .. } => "others",
            RoundStop::LeftBehind { .. } => "left behind",
            RoundStop::Refused(_) => "refused",
            RoundStop::Unreachable(_) => "unreachable",
        };
        Some((word, how == RankStop::AtOnce))
    }
}

fn lost() -> BackendEvent {
    BackendEvent::Lost { why: "no route".into() }
}

#[test]
fn ranks_are_asked_where_the_others_wait_for_them() {
    for on_loss in [OnNodeLoss::End, OnNodeLoss::Regroup] {
        let mut job = Job::new(on_loss);
        job.state(1, JobPhase::Stopping { why: RoundStopCause::More { hosts: Vec::new() }, end: None });
        assert_eq!(job.stop(), Some(("others", false)));
        let mut job = Job::new(on_loss);
        job.hear(BackendEvent::Refused { why: "no role".into() });
        assert_eq!(job.stop(), Some(("refused", false)));
    }
}

#[test]
fn ranks_are_killed_where_the_job_has_gone_on_or_has_ended_without_them() {
    let end = JobEnd::Stopped { host: "h".into(), signal: 15 };
    for on_loss in [OnNodeLoss::End, OnNodeLoss::Regroup] {
        for (round, phase) in [(2, JobPhase::Running), (1, JobPhase::Ended { end: end.clone() })] {
            let mut job = Job::new(on_loss);
            job.state(round, phase);
            assert_eq!(job.stop(), Some(("left behind", true)));
        }
        let mut job = Job::new(on_loss);
        job.hear(BackendEvent::Superseded { why: "another job".into() });
        assert_eq!(job.stop(), Some(("refused", true)));
    }
}

#[test]
fn a_lapsed_lease_kills_ranks_whatever_else_the_node_has_heard() {
    for event in [None, Some(lost()), Some(BackendEvent::Hindered { why: "no space".into() })] {
        let mut job = Job::new(OnNodeLoss::Regroup);
        if let Some(event) = event {
            job.hear(event);
        }
        job.lapse();
        assert_eq!(job.stop(), Some(("unreachable", true)));
    }
    let mut job = Job::new(OnNodeLoss::Regroup);
    job.hear(BackendEvent::Refused { why: "no role".into() });
    job.lapse();
    assert_eq!(job.stop(), Some(("refused", true)));
    let mut job = Job::new(OnNodeLoss::Regroup);
    job.state(1, JobPhase::Stopping { why: RoundStopCause::More { hosts: Vec::new() }, end: None });
    job.lapse();
    assert_eq!(job.stop(), Some(("unreachable", true)));
}

#[test]
fn where_a_lost_node_ends_the_job_its_ranks_are_not_bound_to_the_lease() {
    let mut job = Job::new(OnNodeLoss::End);
    job.lapse();
    assert_eq!(job.stop(), None);
    // Contact has been lost for longer than the loss timeout, which is 0 here.
    job.hear(lost());
    assert_eq!(job.stop(), Some(("unreachable", true)));
}

#[test]
fn lost_contact_alone_stops_no_rank_before_the_lease_lapses() {
    let mut job = Job::new(OnNodeLoss::Regroup);
    job.hear(lost());
    assert_eq!(job.stop(), None);
    job.hear(BackendEvent::Hindered { why: "no space".into() });
    assert_eq!(job.stop(), None);
}

/// The record says what time it was when the node joined. A coordinator that first sees it later would take the clock for wrong.
#[test]
fn a_node_that_waits_without_contact_forgets_when_it_joined() {
    let mut job = Job::waiting(OnNodeLoss::Regroup);
    job.hear(lost());
    let record: NodeRecord = serde_json::from_str(job.puts.lock().unwrap().last().unwrap()).unwrap();
    assert_eq!((record.info.clock_ms, record.status), (0, NodeStatus::Ready { seen: 0 }));
    // In a round it has replaced that record already.
    let mut job = Job::new(OnNodeLoss::Regroup);
    let count = job.puts.lock().unwrap().len();
    job.hear(lost());
    assert_eq!(job.puts.lock().unwrap().len(), count);
}

#[test]
fn a_hang_is_published_when_it_changes_and_the_ranks_keep_their_lease() {
    let mut job = Job::new(OnNodeLoss::Regroup);
    job.lease.enforce();
    let before = job.puts.lock().unwrap().len();
    for hang in [Some(RankHang::Waits), Some(RankHang::Waits), None, None] {
        job.membership.report_hang(hang);
    }
    let statuses = || -> Vec<NodeStatus> {
        let read = |text: &String| serde_json::from_str::<NodeRecord>(text).unwrap().status;
        job.puts.lock().unwrap()[before..].iter().map(read).collect()
    };
    let runs = |hang, is_noticed| NodeStatus::Runs { round: 1, hang, is_noticed };
    assert_eq!(statuses(), [runs(Some(RankHang::Waits), false), runs(None, false)]);
    job.membership.report_notice();
    job.membership.report_notice();
    job.membership.report_hang(Some(RankHang::Waits));
    assert_eq!(statuses()[2..], [runs(None, true), runs(Some(RankHang::Waits), true)]);
    assert_eq!(job.stop(), Some(("unreachable", true)), "its lease is the one that the launcher process has ended");
    job.membership.publish(NodeStatus::Ready { seen: 1 });
    job.membership.report_hang(Some(RankHang::Waits));
    let last = job.puts.lock().unwrap().last().map(|text| serde_json::from_str::<NodeRecord>(text).unwrap().status);
    assert_eq!(last, Some(NodeStatus::Ready { seen: 1 }), "no rank runs any more");
}
