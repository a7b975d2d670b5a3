//! Where etcd is, and what a job is called there.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Where the servers are, and what this job is called there.
#[derive(Clone)]
pub struct EtcdConfig {
    /// `host:port`, or with `etcd://` (http, or https if `tls` is given), `http://` or `https://` before it. The default port is
    /// 2379. All belong to one cluster; the one that answered last is asked first.
    pub endpoints: Vec<String>,
    /// Files for TLS. Without them `https://` trusts the machine's certificate authorities.
    pub tls: Option<EtcdTls>,
    /// User and password.
    pub user: Option<(String, String)>,
    /// The prefix of all keys.
    pub prefix: String,
    /// The job's name.
    pub job: String,
    /// The time without a heartbeat before contact is considered lost; at least 2 s.
    pub lease: Duration,
    /// How much longer etcd keeps the node's record without a heartbeat.
    pub extra_time_to_live: Duration,
    /// How long ranks may run without contact beyond the lease.
    pub loss_timeout: Duration,
    /// The most nodes of the job.
    pub nodes: usize,
    /// How long an endpoint may take to answer; never longer than a third of the lease, which all endpoints share.
    pub timeout: Duration,
}

/// Files in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// The certificates of the authorities to trust.
    pub ca: Option<PathBuf>,
    /// This node's certificate, with the intermediate ones.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

impl EtcdConfig {
    /// This job on these servers. Defaults: no TLS files, no user, prefix `/rlaunch`, lease 10 s, one node, timeout 3 s.
    pub fn new(endpoints: Vec<String>, job: &str) -> Self {
        Self {
            endpoints,
            tls: None,
            user: None,
            prefix: "/rlaunch".to_owned(),
            job: job.to_owned(),
            lease: Duration::from_secs(10),
            extra_time_to_live: Duration::ZERO,
            loss_timeout: Duration::ZERO,
            nodes: 1,
            timeout: Duration::from_secs(3),
        }
    }
}

/// Without the password.
impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoints, tls, user, prefix, job, lease, extra_time_to_live, loss_timeout, nodes, timeout } = self;
        let user = user.as_ref().map(|(name, _)| name);
        let mut shown = f.debug_struct("EtcdConfig");
        shown.field("endpoints", endpoints).field("tls", tls).field("user", &user).field("prefix", prefix);
        shown.field("job", job).field("lease", lease).field("extra_time_to_live", extra_time_to_live);
        shown.field("loss_timeout", loss_timeout).field("nodes", nodes).field("timeout", timeout).finish()
    }
}
