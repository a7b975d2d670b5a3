//! The control socket's server: as long as the supervisor process runs.

use super::runtime_folder::{NoControlSocket, SocketFile};
use super::service::{ControlCommand, ControlService, PreemptControl, StopSwitch};
use crate::net::server::{CommandSender, EventLoop, MemoryBudget, ServerLimits, ServerThread};
use crate::net::thread;
use crate::run::launch::Launch;
use crate::run::launcher_process::SupervisorSide;
use crate::run::multi_node::membership::Membership;
use crate::sys::io::fd;
use crate::sys::{clock, random};
use crossbeam_channel::bounded;
use std::io;
use std::sync::{Arc, OnceLock};
use tracing::{info, warn};

/// Clients at once: more than may wait for looks at the ranks and for other nodes.
const CONNECTIONS: usize = 256;
/// Bytes that all clients together may hold: a few answers with the stacks of a large node.
const MEMORY: usize = 64 << 20;

/// Questions and answers that may wait for the backend.
const MESSAGES: usize = 64;

/// The server. Dropping it removes the socket.
pub struct ControlServer {
    commands: CommandSender<ControlCommand>,
    _thread: ServerThread<ControlService>,
}

impl ControlServer {
    /// Serves a launch. `pid`: the process id of the launcher process.
    pub fn start(launch: &Launch<'_>, supervisor: &SupervisorSide, pid: i32) -> io::Result<Self> {
        let launcher = fd::duplicate(&supervisor.launcher)?;
        // Process ids repeat in other PID namespaces that have the same folder.
        let (file, listener) = match SocketFile::create(&format!("{pid}-{}", random::lowercase(6))) {
            Ok((file, listener, left_alone)) => {
                if let Some(folder) = left_alone {
                    let (folder, path) = (folder.display(), file.path().display());
                    warn!(
                        "{folder} is no folder of this user alone, so it is left alone: the control socket is {path}"
                    );
                }
                (Some(file), Some(listener))
            }
            // The other nodes of the job can still ask this one.
            Err(error) => {
                say_unavailable(&error);
                (None, None)
            }
        };
        let answers = Arc::new(OnceLock::new());
        let stop = StopSwitch { launcher, notice: supervisor.notice.clone(), grace: launch.policy.grace };
        let readers = (launch.stack_reader.clone(), launch.gpu_reader.clone());
        let preempt = PreemptControl { link: launch.preempt_link.clone(), time: launch.preempt.time };
        let service =
            ControlService::new(launch.status.clone(), readers, (stop, preempt), (file, Arc::clone(&answers)));
        let limits = ServerLimits { connections: CONNECTIONS, budget: MemoryBudget::new(MEMORY) };
        let event_loop = EventLoop::new(listener.into_iter().collect(), limits, clock::now, service)?;
        let commands = event_loop.sender();
        // Set once.
        let _ = answers.set(commands.clone());
        Ok(Self { commands, _thread: ServerThread::start("rlaunch-control", event_loop)? })
    }

    /// Lets clients ask the other nodes of the job, and answers these. To be called once, by a thread that has the descriptors of the
    /// backend: the server's thread has not, so another one sends for it.
    pub fn connect(&self, membership: &mut Membership) -> io::Result<()> {
        let (to_others, messages) = bounded(MESSAGES);
        let commands = self.commands.clone();
        // The server may have ended.
        let listener = move |event| drop(commands.send(ControlCommand::Heard(event)));
        let mut sender = membership.connect_questions(Box::new(listener));
        thread::spawn("rlaunch-ask", move || messages.iter().for_each(|message| sender.send(message)))?;
        self.commands.send(ControlCommand::Connected(to_others))
    }
}

fn say_unavailable(error: &NoControlSocket) {
    let what = "no control socket, so `rlaunch status` does not find this job";
    match error {
        NoControlSocket::NotPrivate(_) => warn!("{what}: {error}"),
        NoControlSocket::System(..) => info!("{what}: {error}"),
    }
}
