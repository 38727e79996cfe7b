//! A TCP proxy whose connections a test cuts.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) struct Proxy {
    pub(crate) port: u16,
    is_cut: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub(crate) fn to(target: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy = Proxy { port, is_cut: Arc::default(), streams: Arc::default() };
        let (is_cut, streams) = (Arc::clone(&proxy.is_cut), Arc::clone(&proxy.streams));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // While it is cut, a connection ends at once.
                if is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                for (mut from, mut to) in [
                    (client.try_clone().unwrap(), server.try_clone().unwrap()),
                    (server.try_clone().unwrap(), client.try_clone().unwrap()),
                ] {
                    std::thread::spawn(move || {
                        let mut buffer = [0; 16384];
                        while let Ok(read @ 1..) = from.read(&mut buffer) {
                            if to.write_all(&buffer[..read]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                streams.lock().unwrap().extend([client, server]);
            }
        });
        proxy
    }

    /// Ends all connections and lets none begin.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn restore(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }
}
