//! Port remapping: many control groups bind the same port, and each gets a host port of its own.
//!
//! Four programs of a few instructions attached to the group (`BPF_PROG_TYPE_CGROUP_SOCK_ADDR`, Linux 4.17)
//! change the port in `bind` and `connect`. So programs with a hard-coded port run side by side in the
//! host's network, with everything they reach there, and without the bridge, address translation and routes
//! of a network namespace. They cost something only at those two calls, and are removed with the group.
//! Requires a cgroup v2 group and the capabilities BPF and `NET_ADMIN`; without them
//! [`CgroupPortPrograms::attach`] returns an error and changes nothing.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The TCP port rules of one control group. UDP is not changed.
#[derive(Debug, Clone, Copy)]
pub struct CgroupPortPrograms<'a> {
    /// Each port that its processes bind and connect to, on any address and on loopback; and the host port it is mapped
    /// to, for IPv4 on loopback only.
    pub ports: &'a [(u16, u16)],
    /// Loopback ports that its processes may not connect to.
    pub closed: &'a [u16],
    /// Targets of ports 80 and 443 on every address of [`NAMES`], if there is a gateway.
    pub gateway: Option<(u16, u16)>,
}

/// Loopback addresses that host names resolve to: 127.64.0.0/10. Only the appliance binds them.
pub const NAMES: std::ops::RangeInclusive<Ipv4Addr> = Ipv4Addr::new(127, 64, 0, 0)..=Ipv4Addr::new(127, 127, 255, 255);

/// Far above the two that an appliance has, its API and its admin listener; a program with that many is
/// under a tenth of the 4,096 instructions that every kernel accepts.
const CLOSED_MAX: usize = 64;

/// Far above what the containers of an instance have; with so many, the programs are still within the limit above.
pub const PORTS_MAX: usize = 64;

impl CgroupPortPrograms<'_> {
    /// Attaches the programs to the group whose folder is open as `group`.
    pub fn attach(&self, group: BorrowedFd<'_>) -> io::Result<()> {
        for (what, count, limit) in
            [("closed ports", self.closed.len(), CLOSED_MAX), ("ports of a group", self.ports.len(), PORTS_MAX)]
        {
            if count > limit {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{count} {what}, limit {limit}")));
            }
        }
        for (at, program) in [
            (BIND4, self.bind(true)),
            (BIND6, self.bind(false)),
            (CONNECT4, self.connect(&loopback4())),
            (CONNECT6, self.connect(&loopback6())),
        ] {
            attach(group, &load(&program, at)?, at)?;
        }
        Ok(())
    }

    fn bind(&self, four: bool) -> Vec<ProgramStep> {
        let mut steps = vec![
            ProgramStep::Load(PROTOCOL),
            ProgramStep::UnlessGoto(TCP, ContextField::Allow),
            ProgramStep::Load(PORT),
        ];
        steps.extend(self.find_own());
        for (at, (_, real)) in self.ports.iter().enumerate() {
            steps.extend([
                ProgramStep::Goto(ContextField::Allow),
                ProgramStep::Here(ContextField::Own(at)),
                ProgramStep::Store(PORT, network(*real)),
            ]);
            // An IPv6 wildcard may serve IPv4 as well, and cannot be narrowed without losing that.
            steps.extend(four.then_some(ProgramStep::Store(IP4, u32::from_ne_bytes(Ipv4Addr::LOCALHOST.octets()))));
        }
        steps
    }

    /// Jumps to where the loaded port is replaced, if it is one of the group's.
    fn find_own(&self) -> impl Iterator<Item = ProgramStep> {
        let ports = self.ports.iter().enumerate();
        ports.map(|(at, (named, _))| ProgramStep::IfGoto(network(*named), ContextField::Own(at)))
    }

    fn connect(&self, loopback: &[ProgramStep]) -> Vec<ProgramStep> {
        let mut steps = vec![ProgramStep::Load(PROTOCOL), ProgramStep::UnlessGoto(TCP, ContextField::Allow)];
        steps.extend_from_slice(loopback);
        steps.extend([ProgramStep::Here(ContextField::Local), ProgramStep::Load(PORT)]);
        // The group's own ports first: they mean the group itself, whatever else uses them on the host.
        steps.extend(self.find_own());
        steps.extend([
            ProgramStep::Goto(ContextField::Other),
            ProgramStep::Here(ContextField::Named),
            ProgramStep::Load(PORT),
        ]);
        if self.gateway.is_some() {
            steps.extend([
                ProgramStep::IfGoto(network(HTTP), ContextField::Web),
                ProgramStep::IfGoto(network(HTTPS), ContextField::Secure),
            ]);
        }
        steps.push(ProgramStep::Here(ContextField::Other));
        steps.extend(self.closed.iter().map(|port| ProgramStep::IfGoto(network(*port), ContextField::Deny)));
        let own = self.ports.iter().enumerate().map(|(at, (_, real))| (ContextField::Own(at), *real));
        let gateway = self
            .gateway
            .into_iter()
            .flat_map(|(web, secure)| [(ContextField::Web, web), (ContextField::Secure, secure)]);
        for (label, port) in own.chain(gateway) {
            steps.extend([
                ProgramStep::Goto(ContextField::Allow),
                ProgramStep::Here(label),
                ProgramStep::Store(PORT, network(port)),
            ]);
        }
        steps
    }
}

/// Jumps to `Local` for addresses of this host, and to `Named` for those of host names.
fn loopback4() -> Vec<ProgramStep> {
    let mut steps = vec![ProgramStep::Load(IP4)];
    steps.push(ProgramStep::IfGoto(0, ContextField::Local)); // the kernel treats it as loopback
    steps.extend(named());
    steps.extend([
        ProgramStep::Mask(bytes([0xff, 0, 0, 0])),
        ProgramStep::IfGoto(bytes([127, 0, 0, 0]), ContextField::Local),
    ]);
    steps.push(ProgramStep::Goto(ContextField::Allow));
    steps
}

/// Tests whether the loaded IPv4 address is one of [`NAMES`]; if not, its first byte stays loaded.
fn named() -> [ProgramStep; 2] {
    [ProgramStep::Mask(bytes([0xff, 0xc0, 0, 0])), ProgramStep::IfGoto(bytes([127, 64, 0, 0]), ContextField::Named)]
}

/// The same for `::1`, `::` and IPv4-mapped IPv6.
fn loopback6() -> Vec<ProgramStep> {
    let one = bytes([0, 0, 0, 1]);
    let mapped = bytes([0, 0, 0xff, 0xff]);
    let mut steps = vec![ProgramStep::Load(IP6), ProgramStep::UnlessGoto(0, ContextField::Allow)];
    steps.extend([ProgramStep::Load(IP6 + 4), ProgramStep::UnlessGoto(0, ContextField::Allow)]);
    steps.extend([
        ProgramStep::Load(IP6 + 12),
        ProgramStep::IfGoto(0, ContextField::Local),
        ProgramStep::Load(IP6 + 8),
    ]);
    steps.extend([ProgramStep::IfGoto(mapped, ContextField::Mapped), ProgramStep::UnlessGoto(0, ContextField::Allow)]);
    steps.extend([
        ProgramStep::Load(IP6 + 12),
        ProgramStep::IfGoto(one, ContextField::Local),
        ProgramStep::Goto(ContextField::Allow),
    ]);
    steps.extend([ProgramStep::Here(ContextField::Mapped), ProgramStep::Load(IP6 + 12)]);
    steps.extend(named());
    steps.extend([
        ProgramStep::Mask(bytes([0xff, 0, 0, 0])),
        ProgramStep::UnlessGoto(bytes([127, 0, 0, 0]), ContextField::Allow),
    ]);
    steps
}

/// The default ports of URLs.
const HTTP: u16 = 80;
const HTTPS: u16 = 443;

/// Bytes of an address as a register value.
fn bytes(bytes: [u8; 4]) -> u32 {
    u32::from_ne_bytes(bytes)
}

fn network(port: u16) -> u32 {
    u32::from(port.to_be())
}

/// Offsets in `struct bpf_sock_addr`; all fields have 32 bits.
const IP4: i16 = 4;
const IP6: i16 = 8;
const PORT: i16 = 24;
const PROTOCOL: i16 = 36;
const TCP: u32 = libc::IPPROTO_TCP as u32;

/// One operation on the loaded value (register 2; register 1 holds the arguments of the call).
#[derive(Debug, Clone, Copy)]
enum ProgramStep {
    Load(i16),
    Mask(u32),
    Store(i16, u32),
    IfGoto(u32, ContextField),
    UnlessGoto(u32, ContextField),
    Goto(ContextField),
    /// No instruction: marks a jump target.
    Here(ContextField),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContextField {
    Mapped,
    Local,
    /// An address of [`NAMES`].
    Named,
    /// The group's own port of this number.
    Own(usize),
    /// Any other port, which stays loaded.
    Other,
    Web,
    Secure,
    /// After the last step: allows the call.
    Allow,
    /// After that: the call fails with EPERM.
    Deny,
}

/// One instruction in the kernel's format: operation, registers, offset, immediate.
type BpfInstruction = [u8; 8];

fn instruction(operation: u8, registers: u8, offset: i16, immediate: u32) -> BpfInstruction {
    let ([o0, o1], [i0, i1, i2, i3]) = (offset.to_ne_bytes(), immediate.to_ne_bytes());
    [operation, registers, o0, o1, i0, i1, i2, i3]
}

/// Assembles `steps` into a program that ends by allowing, followed by the denial if a step jumps to it.
fn assemble(steps: &[ProgramStep]) -> Vec<BpfInstruction> {
    // Numbers of linux/bpf_common.h and linux/bpf.h; jumps compare 32 bits (Linux 5.1).
    const LOAD: u8 = 0x61;
    const STORE: u8 = 0x63;
    const SET: u8 = 0xb4;
    const AND: u8 = 0x54;
    const JUMP: u8 = 0x05;
    const JUMP_EQUAL: u8 = 0x16;
    const JUMP_OTHER: u8 = 0x56;
    const EXIT: u8 = 0x95;
    const VALUE: u8 = 2;
    const ARGUMENTS: u8 = 1;
    let length = |step: &ProgramStep| match step {
        ProgramStep::Here(_) => 0,
        ProgramStep::Store(..) => 2,
        _ => 1,
    };
    let allow: usize = steps.iter().map(length).sum();
    let index = |label: ContextField| match label {
        ContextField::Allow => allow,
        ContextField::Deny => allow + 2,
        inside => steps
            .iter()
            .take_while(|step| !matches!(step, ProgramStep::Here(here) if *here == inside))
            .map(length)
            .sum(),
    };
    let mut out: Vec<BpfInstruction> = Vec::with_capacity(allow + 4);
    for step in steps {
        let jump = |operation, registers, value, label| {
            // Forward and at most a few hundred instructions: `CLOSED_MAX` and `PORTS_MAX`.
            let distance = index(label) - out.len() - 1;
            instruction(operation, registers, distance as i16, value)
        };
        match *step {
            ProgramStep::Load(at) => out.push(instruction(LOAD, ARGUMENTS << 4 | VALUE, at, 0)),
            ProgramStep::Mask(mask) => out.push(instruction(AND, VALUE, 0, mask)),
            ProgramStep::Store(at, value) => {
                out.push(instruction(SET, VALUE, 0, value));
                out.push(instruction(STORE, VALUE << 4 | ARGUMENTS, at, 0));
            }
            ProgramStep::IfGoto(value, label) => out.push(jump(JUMP_EQUAL, VALUE, value, label)),
            ProgramStep::UnlessGoto(value, label) => out.push(jump(JUMP_OTHER, VALUE, value, label)),
            ProgramStep::Goto(label) => out.push(jump(JUMP, 0, 0, label)),
            ProgramStep::Here(_) => {}
        }
    }
    // The kernel rejects a program with unreachable instructions.
    let denies = steps.iter().any(|step| matches!(step, ProgramStep::IfGoto(_, ContextField::Deny)));
    for answer in if denies { &[1, 0][..] } else { &[1] } {
        out.extend([instruction(SET, 0, 0, *answer), instruction(EXIT, 0, 0, 0)]);
    }
    out
}

const PROGRAM_LOAD: libc::c_long = 5;
const PROGRAM_ATTACH: libc::c_long = 8;
const SOCKET_ADDRESS: u32 = 18; // BPF_PROG_TYPE_CGROUP_SOCK_ADDR
const BIND4: u32 = 8;
const BIND6: u32 = 9;
const CONNECT4: u32 = 10;
const CONNECT6: u32 = 11;
/// In addition to programs that a service manager attached above.
const ALLOW_MULTI: u32 = 2;

/// The part of `union bpf_attr` that a load needs; the kernel treats the rest as zero.
#[repr(C)]
struct BpfLoadAttr {
    kind: u32,
    instructions: u32,
    at: u64,
    licence: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

#[repr(C)]
struct BpfAttachAttr {
    target: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
}

fn load(steps: &[ProgramStep], attach_type: u32) -> io::Result<OwnedFd> {
    let program = assemble(steps);
    let attributes = BpfLoadAttr {
        kind: SOCKET_ADDRESS,
        instructions: program.len() as u32,
        at: program.as_ptr() as u64,
        licence: c"Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: *b"sluicegate_port\0",
        interface: 0,
        attach_type,
    };
    // SAFETY: the structure has the kernel's layout and lives through the call, with the program and the
    // licence that it points to; the kernel reads them and writes nothing, because no log is requested.
    let made = unsafe { libc::syscall(libc::SYS_bpf, PROGRAM_LOAD, &raw const attributes, size_of::<BpfLoadAttr>()) };
    let made = i32::try_from(checked(made)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just created this descriptor, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

fn attach(group: BorrowedFd<'_>, program: &OwnedFd, attach_type: u32) -> io::Result<()> {
    let attributes = BpfAttachAttr {
        target: group.as_raw_fd() as u32,
        program: program.as_raw_fd() as u32,
        attach_type,
        flags: ALLOW_MULTI,
    };
    // SAFETY: the structure has the kernel's layout and lives through the call, which only reads it; both
    // descriptors stay borrowed during it.
    let done =
        unsafe { libc::syscall(libc::SYS_bpf, PROGRAM_ATTACH, &raw const attributes, size_of::<BpfAttachAttr>()) };
    checked(done).map(drop)
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Result of a program for a call: the verdict and the changed arguments. An interpreter of the few
    /// operations used.
    fn run(program: &[BpfInstruction], mut arguments: [u32; 10]) -> (u32, [u32; 10]) {
        let (mut at, mut registers) = (0, [0_u32; 3]);
        loop {
            let [operation, packed, o0, o1, i0, i1, i2, i3] = program[at];
            let (to, from) = (usize::from(packed & 15), usize::from(packed >> 4));
            let (offset, value) = (i16::from_ne_bytes([o0, o1]) as usize, u32::from_ne_bytes([i0, i1, i2, i3]));
            at += 1;
            match operation {
                0x61 => registers[to] = arguments[offset / 4],
                0x63 => arguments[offset / 4] = registers[from],
                0xb4 => registers[to] = value,
                0x54 => registers[to] &= value,
                0x05 => at += offset,
                0x16 => at += if registers[to] == value { offset } else { 0 },
                0x56 => at += if registers[to] == value { 0 } else { offset },
                0x95 => return (registers[0], arguments),
                other => panic!("operation {other:#x}"),
            }
        }
    }

    fn call(address: std::net::SocketAddr, protocol: u32) -> [u32; 10] {
        let mut arguments = [0; 10];
        match address.ip() {
            std::net::IpAddr::V4(ip) => arguments[1] = u32::from_ne_bytes(ip.octets()),
            std::net::IpAddr::V6(ip) => {
                for (word, bytes) in arguments[2..6].iter_mut().zip(ip.octets().chunks_exact(4)) {
                    *word = u32::from_ne_bytes(bytes.try_into().unwrap());
                }
            }
        }
        (arguments[6], arguments[9]) = (network(address.port()), protocol);
        arguments
    }

    const RULE: CgroupPortPrograms<'_> =
        CgroupPortPrograms { ports: &[(8080, 20_001), (9000, 20_009)], closed: &[8001, 9090], gateway: GATEWAY };
    const GATEWAY: Option<(u16, u16)> = Some((20_002, 20_003));

    #[test]
    fn only_named_tcp_ports_are_remapped() {
        for (address, protocol, wanted) in [
            ("0.0.0.0:8080", TCP, "127.0.0.1:20001"),
            ("127.0.0.1:8080", TCP, "127.0.0.1:20001"),
            ("0.0.0.0:9000", TCP, "127.0.0.1:20009"),
            ("[::]:9000", TCP, "[::]:20009"),
            ("0.0.0.0:8081", TCP, "0.0.0.0:8081"),
            ("0.0.0.0:0", TCP, "0.0.0.0:0"),
            ("0.0.0.0:8080", 17, "0.0.0.0:8080"),
            ("[::]:8080", TCP, "[::]:20001"),
            ("[::1]:9090", TCP, "[::1]:9090"),
        ] {
            let address: std::net::SocketAddr = address.parse().unwrap();
            let program = assemble(&RULE.bind(address.is_ipv4()));
            let wanted = call(wanted.parse().unwrap(), protocol);
            assert_eq!(run(&program, call(address, protocol)), (1, wanted), "{address}");
        }
    }

    /// RT-LIFE-11: closed ports cannot be reached through any loopback address.
    #[test]
    fn loopback_reaches_own_port_and_never_closed_ports() {
        for (address, wanted) in [
            ("127.0.0.1:8080", Some("127.0.0.1:20001")),
            ("127.8.8.8:8080", Some("127.8.8.8:20001")),
            ("127.0.0.1:9000", Some("127.0.0.1:20009")),
            ("[::1]:9000", Some("[::1]:20009")),
            ("0.0.0.0:8080", Some("0.0.0.0:20001")),
            ("10.0.0.1:8080", Some("10.0.0.1:8080")),
            ("10.0.0.127:8001", Some("10.0.0.127:8001")),
            ("127.0.0.1:8081", Some("127.0.0.1:8081")),
            ("127.0.0.1:8001", None),
            ("127.1.2.3:9090", None),
            ("0.0.0.0:8001", None),
            ("[::1]:8080", Some("[::1]:20001")),
            ("[::1]:8081", Some("[::1]:8081")),
            ("[::1]:9090", None),
            ("[::]:8001", None),
            ("[::ffff:127.0.0.1]:8001", None),
            ("[::ffff:0.0.0.0]:8001", None),
            ("[::ffff:127.0.0.1]:8080", Some("[::ffff:127.0.0.1]:20001")),
            ("[::ffff:10.0.0.1]:8001", Some("[::ffff:10.0.0.1]:8001")),
            ("[fd00::1]:8001", Some("[fd00::1]:8001")),
            ("[0:0:0:1::1]:8001", Some("[0:0:0:1::1]:8001")),
            ("[::1:127.0.0.1]:8001", Some("[::1:127.0.0.1]:8001")),
            ("127.0.0.1:80", Some("127.0.0.1:80")),
            // Host names lead to no port of the group, and to no closed port.
            ("127.71.3.5:80", Some("127.71.3.5:20002")),
            ("127.71.3.5:443", Some("127.71.3.5:20003")),
            ("127.0.0.1:443", Some("127.0.0.1:443")),
            ("127.63.255.255:80", Some("127.63.255.255:80")),
            ("127.71.3.6:8080", Some("127.71.3.6:8080")),
            ("127.127.255.255:8080", Some("127.127.255.255:8080")),
            ("127.128.0.0:8080", Some("127.128.0.0:20001")),
            ("127.71.3.6:9090", None),
            ("[::ffff:127.71.3.5]:80", Some("[::ffff:127.71.3.5]:20002")),
            ("[::ffff:127.71.3.5]:443", Some("[::ffff:127.71.3.5]:20003")),
            ("[::ffff:127.1.3.6]:80", Some("[::ffff:127.1.3.6]:80")),
            ("[::ffff:127.71.3.6]:8001", None),
        ] {
            let address: std::net::SocketAddr = address.parse().unwrap();
            let loopback = if address.is_ipv4() { loopback4() } else { loopback6() };
            let (answer, after) = run(&assemble(&RULE.connect(&loopback)), call(address, TCP));
            let wanted = wanted.map(|wanted| call(wanted.parse().unwrap(), TCP));
            assert_eq!((answer == 1).then_some(after), wanted, "{address}");
            let (answer, _) = run(&assemble(&RULE.connect(&loopback)), call(address, 17));
            assert_eq!(answer, 1, "UDP to {address}");
        }
    }

    /// The kernel's verifier accepts the programs of the table above; skipped where the test may not load
    /// programs.
    #[test]
    fn kernel_verifier_accepts_programs() {
        let closed: Vec<u16> = (1..=64).collect();
        let ports: Vec<(u16, u16)> = (80..144).map(|port| (port, port + 20_000)).collect();
        let rule = CgroupPortPrograms { ports: &ports, closed: &closed, gateway: None };
        let with_names = CgroupPortPrograms { gateway: GATEWAY, ..rule };
        for (at, program) in [
            (BIND4, rule.bind(true)),
            (BIND6, rule.bind(false)),
            (CONNECT4, rule.connect(&loopback4())),
            (CONNECT6, rule.connect(&loopback6())),
            (CONNECT4, with_names.connect(&loopback4())),
            (CONNECT6, with_names.connect(&loopback6())),
        ] {
            match load(&program, at) {
                Err(why) if why.kind() == io::ErrorKind::PermissionDenied => {
                    eprintln!("skipped: {why}");
                    return;
                }
                loaded => drop(loaded.unwrap()),
            }
        }
        let none = std::fs::File::open("/").unwrap();
        assert!(rule.attach(std::os::fd::AsFd::as_fd(&none)).is_err(), "no group");
        let rule = CgroupPortPrograms { closed: &[1; CLOSED_MAX + 1], ..rule };
        assert_eq!(rule.attach(std::os::fd::AsFd::as_fd(&none)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let rule = CgroupPortPrograms { ports: &[(80, 20_001); PORTS_MAX + 1], closed: &closed, gateway: None };
        assert_eq!(rule.attach(std::os::fd::AsFd::as_fd(&none)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
