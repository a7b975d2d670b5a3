//! Nodes that meet at etcd: version 3, by its JSON gateway (etcd 3.4 and later).
//!
//! Below `/{prefix}/{job}/`:
//!
//! | key | what | goes with |
//! |---|---|---|
//! | `nodes/{id}` | a node's record; empty: it leaves in order | its node's lease |
//! | `board/leader` | the id of who coordinates; its create revision is the *term* | its node's lease |
//! | `board/state` | the job's state, by the coordinator of which term, and where its members' list is | the job's lease |
//! | `members/{version}/{n}` | the members' list, in pieces | the job's lease |
//!
//! A node joins by one transaction: its record, the leader's key if there is none, what is on the board. All watch the
//! board, who leads watches the nodes too. What a coordinator writes is fenced: by its term, and by the revision of the
//! state that it knows. When all nodes have left, everything goes; where nobody could see to that, the job's lease does.

mod board;
mod client;
mod event;
mod keeper;
mod office;
mod tie;
mod tls;
mod watch;
mod wire;
mod words;
mod worker;

pub use tie::{EtcdTie, tie};

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Where the server is, and what this job is called there.
#[derive(Clone)]
pub struct Etcd {
    /// `host:port`, or with `etcd://` (http, but https where `tls` is given), `http://` or `https://` before it; the
    /// port is 2379 if there is none. One cluster's; who answers is asked again.
    pub endpoints: Vec<String>,
    /// Files for TLS. Without them `https://` trusts the machine's certificate authorities.
    pub tls: Option<Tls>,
    /// User and password.
    pub user: Option<(String, String)>,
    /// What all keys begin with.
    pub prefix: String,
    /// The job's name.
    pub job: String,
    /// How long a node that nobody hears of is taken to be there; 2 s at least.
    pub lease: Duration,
    /// How long an endpoint may take to answer; never longer than a third of the lease, which all endpoints share.
    pub timeout: Duration,
}

/// Files in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Whom to trust.
    pub ca: Option<PathBuf>,
    /// This node's certificate, with those between it and its authority.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

impl Etcd {
    /// This job on those servers: no TLS files, no user, `/rlaunch`, 10 s, 3 s.
    pub fn new(endpoints: Vec<String>, job: &str) -> Self {
        Self {
            endpoints,
            tls: None,
            user: None,
            prefix: "/rlaunch".to_owned(),
            job: job.to_owned(),
            lease: Duration::from_secs(10),
            timeout: Duration::from_secs(3),
        }
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoints, tls, user, prefix, job, lease, timeout } = self;
        let user = user.as_ref().map(|(name, _)| name);
        let mut shown = f.debug_struct("Etcd");
        shown.field("endpoints", endpoints).field("tls", tls).field("user", &user).field("prefix", prefix);
        shown.field("job", job).field("lease", lease).field("timeout", timeout).finish()
    }
}
