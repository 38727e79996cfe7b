//! The simulated machine: a network, a disk and a clock driven by one seed.
//!
//! Time does not pass by itself. Each turn of the loop costs 1 µs, and when no task can run the clock jumps
//! to the next scheduled event. Randomness comes from the seed alone, so the same program with the same
//! seed and fault profile behaves identically, and a failing run is one number.
//!
//! The network connects streams and listeners of one simulation. The disk uses real files, so that what a
//! power cut leaves can be opened and read.

mod buffers;
mod clock;
mod disk;
mod faults;
mod net;

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::rc::Rc;
use std::time::Duration;

use crate::address::SocketAddress;
use crate::driver::{Driver, WaitPolicy};
use crate::limits::RingOptions;
use crate::op::{Completion, Op, OpKey, SocketHandle};
use crate::pool::BufferPool;
use crate::ring::Ring;
use crate::tick::Tick;
use crate::wake::WakeFlag;

use buffers::{SimBuffers, SimReceiveTarget};
use clock::EventSchedule;
use disk::SimDisk;
pub use faults::FaultProfile;
use net::SimNetwork;

/// Cost of one turn of the loop, so that a task that always yields sees time pass.
const TURN: Duration = Duration::from_micros(1);

/// A machine with one ring.
pub struct Simulation {
    ring: Ring,
    state: Rc<RefCell<SimState>>,
}

impl Simulation {
    #[must_use]
    pub fn new(seed: u64, faults: FaultProfile) -> Self {
        Self::with_options(seed, faults, RingOptions::default())
    }

    /// A simulation whose ring has its own limits.
    #[must_use]
    pub fn with_options(seed: u64, faults: FaultProfile, options: RingOptions) -> Self {
        let pool = BufferPool::new(options.chunk_bytes, options.chunks).expect("memory for receive buffers");
        let state = SimState {
            schedule: EventSchedule::default(),
            chance: fastrand::Rng::with_seed(seed),
            faults,
            net: SimNetwork::new(SimBuffers::new(Rc::clone(&pool))),
            disk: SimDisk::default(),
            answers: Vec::new(),
            powered: true,
        };
        let state = Rc::new(RefCell::new(state));
        let driver = SimDriver { state: Rc::clone(&state) };
        Self { ring: Ring::new(Box::new(driver), pool, WakeFlag::new(None), options), state }
    }

    /// The ring of the machine; each call returns a handle to the same one.
    #[must_use]
    pub fn ring(&self) -> Ring {
        self.ring.clone()
    }

    /// Changes the fault profile from now on.
    pub fn set_faults(&self, faults: FaultProfile) {
        self.state.borrow_mut().faults = faults;
    }

    /// Simulates a power cut. Any subset of the 4 KiB pages that were written and not synced is lost,
    /// writes in flight happen in part or not at all, and every operation, now and later, fails. The files
    /// are then as the next start finds them: open them in a new simulation.
    pub fn power_cut(&self) {
        self.state.borrow_mut().power_cut();
    }
}

/// The state of a simulation.
struct SimState {
    schedule: EventSchedule<SimEvent>,
    chance: fastrand::Rng,
    faults: FaultProfile,
    net: SimNetwork,
    disk: SimDisk,
    /// Ready to be returned by the next turn.
    answers: Vec<Completion>,
    powered: bool,
}

/// A scheduled event.
enum SimEvent {
    Net(net::NetEvent),
    /// The disk executes this operation.
    Disk(OpKey),
}

/// What one part of the simulation may use of the others.
struct SimContext<'a> {
    schedule: &'a mut EventSchedule<SimEvent>,
    chance: &'a mut fastrand::Rng,
    faults: &'a FaultProfile,
    answers: &'a mut Vec<Completion>,
}

impl SimContext<'_> {
    /// The only completion, or the last of several.
    fn finish(&mut self, key: OpKey, result: i32) {
        self.answers.push(Completion { key, result, more: false, chunk: None });
    }

    fn happens(&mut self, per_million: u32) -> bool {
        self.chance.u32(0..1_000_000) < per_million
    }

    fn between(&mut self, range: &std::ops::RangeInclusive<Duration>) -> Duration {
        let (low, high) = (range.start().as_nanos() as u64, range.end().as_nanos() as u64);
        Duration::from_nanos(self.chance.u64(low..=high.max(low)))
    }
}

impl SimState {
    fn parts(&mut self) -> (&mut SimNetwork, &mut SimDisk, SimContext<'_>) {
        let Self { schedule, chance, faults, net, disk, answers, .. } = self;
        (net, disk, SimContext { schedule, chance, faults, answers })
    }

    fn start(&mut self, key: OpKey, op: &Op) {
        let powered = self.powered;
        let (net, disk, mut means) = self.parts();
        match op {
            Op::Close(handle) => net.close(key, *handle, &mut means),
            _ if !powered => means.finish(key, -libc::EIO),
            Op::Accept(socket) => net.accept(key, socket.handle, &mut means),
            Op::Connect(socket, address) => net.connect(key, socket.handle, address.address, &mut means),
            Op::Receive(socket) => net.receive(key, socket.handle, SimReceiveTarget::Buffers, &mut means),
            Op::ReceiveOnce(socket, buffer) => {
                let target = SimReceiveTarget::OpBuffer { start: buffer.start, bytes: buffer.len() };
                net.receive(key, socket.handle, target, &mut means);
            }
            // Copied, as a kernel does: a send in flight must not hold receive buffers.
            Op::Send(socket, chunk) | Op::DetachedSend(socket, chunk) => {
                net.send(key, socket.handle, chunk.to_vec().into(), &mut means)
            }
            Op::Shutdown(socket) => net.shutdown(key, socket.handle, &mut means),
            Op::Hangup(socket) => net.hangup(key, socket.handle, &mut means),
            Op::Readable(_) => means.finish(key, -libc::EOPNOTSUPP), // it has no datagrams
            Op::Write(write) => disk.write(key, write, &mut means),
            Op::Sync(file) => disk.sync(key, file, &mut means),
        }
    }

    /// Executes all events whose time has come.
    fn happen(&mut self) {
        while let Some(event) = self.schedule.pop_due() {
            let (net, disk, mut means) = self.parts();
            match event {
                SimEvent::Net(event) => net.happen(event, &mut means),
                SimEvent::Disk(key) => disk.happen(key, &mut means),
            }
        }
    }

    /// Advances the clock until there is a completion or the wait ends.
    fn wait(&mut self, policy: WaitPolicy) {
        let until = match policy {
            WaitPolicy::None => return,
            WaitPolicy::Until(wait) | WaitPolicy::Awake(wait) => Some(self.schedule.now() + wait),
            WaitPolicy::Forever => None,
        };
        while self.answers.is_empty() {
            match (self.schedule.next(), until) {
                (Some(next), until) if until.is_none_or(|until| next <= until) => {
                    self.schedule.jump(next);
                    self.happen();
                }
                (_, Some(until)) => {
                    self.schedule.jump(until);
                    return;
                }
                (_, None) => panic!("the simulation is stuck: every task waits for an event that cannot happen"),
            }
        }
    }

    fn power_cut(&mut self) {
        self.powered = false;
        let (net, disk, mut means) = self.parts();
        disk.power_cut(&mut means);
        net.power_cut(&mut means);
        means.schedule.clear();
    }
}

struct SimDriver {
    state: Rc<RefCell<SimState>>,
}

impl Driver for SimDriver {
    fn now(&self) -> Tick {
        self.state.borrow().schedule.now()
    }

    unsafe fn start(&mut self, key: OpKey, op: &Op) {
        self.state.borrow_mut().start(key, op);
    }

    fn cancel(&mut self, key: OpKey) {
        let mut state = self.state.borrow_mut();
        let (net, _, mut means) = state.parts();
        net.cancel(key, &mut means); // the disk finishes what it has started
    }

    fn turn(&mut self, policy: WaitPolicy, answers: &mut Vec<Completion>) {
        let mut state = self.state.borrow_mut();
        let after = state.schedule.now() + TURN;
        state.schedule.jump(after);
        state.net.buffers.refill();
        state.happen();
        state.wait(policy);
        answers.append(&mut state.answers);
    }

    fn socket(&mut self, _: &SocketAddress) -> io::Result<SocketHandle> {
        Ok(self.state.borrow_mut().net.socket())
    }

    fn listen(&mut self, address: &SocketAddress) -> io::Result<SocketHandle> {
        let address = address.address.socket_addr().ok_or(io::ErrorKind::Unsupported)?;
        self.state.borrow_mut().net.listen(address)
    }

    fn adopt(&mut self, listener: TcpListener) -> io::Result<SocketHandle> {
        let address = listener.local_addr()?;
        self.state.borrow_mut().net.listen(address)
    }

    fn adopt_datagram(&mut self, _: UdpSocket) -> io::Result<SocketHandle> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn local_address(&self, socket: SocketHandle) -> io::Result<SocketAddr> {
        self.state.borrow().net.local_address(socket)
    }

    fn peer_address(&self, socket: SocketHandle) -> io::Result<SocketAddr> {
        self.state.borrow().net.peer_address(socket)
    }

    fn set_reset_on_close(&mut self, socket: SocketHandle, resets: bool) -> io::Result<()> {
        self.state.borrow_mut().net.set_reset_on_close(socket, resets);
        Ok(())
    }

    /// The simulated network delays no acknowledgement.
    fn acknowledge(&mut self, _socket: SocketHandle) {}
}
