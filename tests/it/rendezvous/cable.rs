//! A cable between a node and a server that can be cut.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

pub struct Cable {
    pub port: u16,
    /// Of etcd.
    pub endpoint: String,
    cut: Arc<AtomicBool>,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
}

impl Cable {
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap();
        let (cut, sockets) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let endpoint = format!("http://{own}");
        let cable = Self { port: own.port(), endpoint, cut: Arc::clone(&cut), sockets: Arc::clone(&sockets) };
        thread::spawn(move || {
            for near in listener.incoming() {
                let Ok(near) = near else { continue };
                let mut kept = sockets.lock().unwrap();
                if cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || {
                        let mut bytes = [0; 16384];
                        while let Ok(count @ 1..) = from.read(&mut bytes) {
                            if to.write_all(&bytes[..count]).is_err() {
                                break;
                            }
                        }
                        to.shutdown(Shutdown::Both).ok();
                    });
                }
                kept.extend([near, far]);
            }
        });
        cable
    }

    pub fn cut(&self) {
        let mut kept = self.sockets.lock().unwrap();
        self.cut.store(true, Ordering::SeqCst);
        for socket in kept.drain(..) {
            socket.shutdown(Shutdown::Both).ok();
        }
    }

    pub fn mend(&self) {
        self.cut.store(false, Ordering::SeqCst);
    }
}
