//! Docker's default profile, which is also containerd's.

use libc::*;
use rustix::thread::CapabilitySet;

use super::bpf::{Exception, Rules};

/// Flags of `clone` that make namespaces: `CLONE_NEWNS`, `NEWCGROUP`, `NEWUTS`, `NEWIPC`, `NEWUSER`, `NEWPID`, `NEWNET`.
const NAMESPACE_FLAGS: u32 = 0x7e02_0000;
/// `AF_ALG`, the kernel's cryptography, which had holes that lead to root; and `AF_VSOCK`, a way to the host of a virtual
/// machine, past every rule about networks.
const REFUSED_SOCKETS: &[u32] = &[38, 40];
/// The allowed arguments of `personality`: Linux, without and with 64-bit or 32-bit addresses, and the query.
const PERSONALITIES: &[u32] = &[0x0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
/// Calls with the same number on all architectures.
const CLONE3: u32 = 435;

/// The rules for a process that has no more than `capabilities`.
pub(super) fn rules(capabilities: CapabilitySet) -> Rules {
    let named = |names: &'static [c_long]| names.iter().filter_map(|number| u32::try_from(*number).ok());
    let mut rules = Rules { allowed: named(ALLOWED).chain(named(ALLOWED_HERE)).collect(), ..Rules::default() };
    rules.allowed.extend(ALLOWED_SINCE);
    for (capability, names, newer) in BY_CAPABILITY {
        if capabilities.contains(*capability) {
            rules.allowed.extend(named(names).chain(newer.iter().copied()));
        }
    }
    let number = |name: c_long| u32::try_from(name).expect("a system call has a small number");
    if !capabilities.contains(CapabilitySet::SYS_ADMIN) {
        rules.exceptions.push((number(SYS_clone), Exception::Unset(NAMESPACE_FLAGS)));
        rules.exceptions.push((CLONE3, Exception::Unknown));
    }
    rules.exceptions.push((number(SYS_socket), Exception::NoneOf(REFUSED_SOCKETS)));
    rules.exceptions.push((number(SYS_personality), Exception::OneOf(PERSONALITIES)));
    rules
}

#[rustfmt::skip]
const ALLOWED: &[c_long] = &[
    SYS_accept, SYS_accept4, SYS_adjtimex, SYS_bind, SYS_brk, SYS_capget, SYS_capset, SYS_chdir,
    SYS_clock_adjtime, SYS_clock_getres, SYS_clock_gettime, SYS_clock_nanosleep, SYS_close, SYS_connect,
    SYS_copy_file_range, SYS_dup, SYS_dup3, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_eventfd2,
    SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_faccessat, SYS_fadvise64, SYS_fallocate,
    SYS_fanotify_mark, SYS_fchdir, SYS_fchmod, SYS_fchmodat, SYS_fchown, SYS_fchownat, SYS_fcntl, SYS_fdatasync,
    SYS_fgetxattr, SYS_flistxattr, SYS_flock, SYS_fremovexattr, SYS_fsetxattr, SYS_fstat, SYS_fstatfs,
    SYS_fsync, SYS_ftruncate, SYS_futex, SYS_getcpu, SYS_getcwd, SYS_getdents64, SYS_getegid, SYS_geteuid,
    SYS_getgid, SYS_getgroups, SYS_getitimer, SYS_getpeername, SYS_getpgid, SYS_getpid, SYS_getppid,
    SYS_getpriority, SYS_getrandom, SYS_getresgid, SYS_getresuid, SYS_getrlimit, SYS_get_robust_list,
    SYS_getrusage, SYS_getsid, SYS_getsockname, SYS_getsockopt, SYS_gettid, SYS_gettimeofday, SYS_getuid,
    SYS_getxattr, SYS_inotify_add_watch, SYS_inotify_init1, SYS_inotify_rm_watch, SYS_io_cancel, SYS_ioctl,
    SYS_io_destroy, SYS_io_getevents, SYS_ioprio_get, SYS_ioprio_set, SYS_io_setup, SYS_io_submit, SYS_kill,
    SYS_lgetxattr, SYS_linkat, SYS_listen, SYS_listxattr, SYS_llistxattr, SYS_lremovexattr, SYS_lseek,
    SYS_lsetxattr, SYS_madvise, SYS_membarrier, SYS_memfd_create, SYS_mincore, SYS_mkdirat, SYS_mknodat,
    SYS_mlock, SYS_mlock2, SYS_mlockall, SYS_mmap, SYS_mprotect, SYS_mq_getsetattr, SYS_mq_notify, SYS_mq_open,
    SYS_mq_timedreceive, SYS_mq_timedsend, SYS_mq_unlink, SYS_mremap, SYS_msgctl, SYS_msgget, SYS_msgrcv,
    SYS_msgsnd, SYS_msync, SYS_munlock, SYS_munlockall, SYS_munmap, SYS_name_to_handle_at, SYS_nanosleep,
    SYS_newfstatat, SYS_openat, SYS_pipe2, SYS_pkey_alloc, SYS_pkey_free, SYS_pkey_mprotect, SYS_ppoll,
    SYS_prctl, SYS_pread64, SYS_preadv, SYS_preadv2, SYS_prlimit64, SYS_process_vm_readv, SYS_process_vm_writev,
    SYS_pselect6, SYS_ptrace, SYS_pwrite64, SYS_pwritev, SYS_pwritev2, SYS_read, SYS_readahead, SYS_readlinkat,
    SYS_readv, SYS_recvfrom, SYS_recvmmsg, SYS_recvmsg, SYS_remap_file_pages, SYS_removexattr, SYS_renameat2,
    SYS_restart_syscall, SYS_rseq, SYS_rt_sigaction, SYS_rt_sigpending, SYS_rt_sigprocmask, SYS_rt_sigqueueinfo,
    SYS_rt_sigreturn, SYS_rt_sigsuspend, SYS_rt_sigtimedwait, SYS_rt_tgsigqueueinfo, SYS_sched_getaffinity,
    SYS_sched_getattr, SYS_sched_getparam, SYS_sched_get_priority_max, SYS_sched_get_priority_min,
    SYS_sched_getscheduler, SYS_sched_rr_get_interval, SYS_sched_setaffinity, SYS_sched_setattr,
    SYS_sched_setparam, SYS_sched_setscheduler, SYS_sched_yield, SYS_seccomp, SYS_semctl, SYS_semget, SYS_semop,
    SYS_semtimedop, SYS_sendfile, SYS_sendmmsg, SYS_sendmsg, SYS_sendto, SYS_setfsgid, SYS_setfsuid, SYS_setgid,
    SYS_setgroups, SYS_setitimer, SYS_setpgid, SYS_setpriority, SYS_setregid, SYS_setresgid, SYS_setresuid,
    SYS_setreuid, SYS_setrlimit, SYS_set_robust_list, SYS_setsid, SYS_setsockopt, SYS_set_tid_address,
    SYS_setuid, SYS_setxattr, SYS_shmat, SYS_shmctl, SYS_shmdt, SYS_shmget, SYS_shutdown, SYS_sigaltstack,
    SYS_signalfd4, SYS_socketpair, SYS_splice, SYS_statfs, SYS_statx, SYS_symlinkat, SYS_sync,
    SYS_sync_file_range, SYS_syncfs, SYS_sysinfo, SYS_tee, SYS_tgkill, SYS_timer_create, SYS_timer_delete,
    SYS_timer_getoverrun, SYS_timer_gettime, SYS_timer_settime, SYS_timerfd_create, SYS_timerfd_gettime,
    SYS_timerfd_settime, SYS_times, SYS_tkill, SYS_truncate, SYS_umask, SYS_uname, SYS_unlinkat, SYS_utimensat,
    SYS_vmsplice, SYS_wait4, SYS_waitid, SYS_write, SYS_writev,
];

/// Calls of older architectures only.
#[rustfmt::skip]
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[c_long] = &[
    SYS_access, SYS_alarm, SYS_arch_prctl, SYS_chmod, SYS_chown, SYS_creat, SYS_dup2, SYS_epoll_create,
    SYS_epoll_ctl_old, SYS_epoll_wait, SYS_epoll_wait_old, SYS_eventfd, SYS_fork, SYS_futimesat, SYS_getdents,
    SYS_getpgrp, SYS_get_thread_area, SYS_inotify_init, SYS_lchown, SYS_link, SYS_lstat, SYS_mkdir, SYS_mknod,
    SYS_modify_ldt, SYS_open, SYS_pause, SYS_pipe, SYS_poll, SYS_readlink, SYS_rename, SYS_renameat, SYS_rmdir,
    SYS_select, SYS_set_thread_area, SYS_signalfd, SYS_stat, SYS_symlink, SYS_time, SYS_unlink, SYS_utime,
    SYS_utimes, SYS_vfork,
    333, // io_pgetevents
];

#[cfg(target_arch = "aarch64")]
const ALLOWED_HERE: &[c_long] = &[SYS_renameat, 292 /* io_pgetevents */];

/// Newer ones, which have one number on all machines.
#[rustfmt::skip]
const ALLOWED_SINCE: [u32; 25] = [
    424, // pidfd_send_signal
    434, // pidfd_open
    436, // close_range
    437, // openat2
    439, // faccessat2
    441, // epoll_pwait2
    444, // landlock_create_ruleset
    445, // landlock_add_rule
    446, // landlock_restrict_self
    447, // memfd_secret
    448, // process_mrelease
    449, // futex_waitv
    451, // cachestat
    452, // fchmodat2
    453, // map_shadow_stack
    454, // futex_wake
    455, // futex_wait
    456, // futex_requeue
    457, // statmount
    458, // listmount
    462, // mseal
    463, // setxattrat
    464, // getxattrat
    465, // listxattrat
    466, // removexattrat
];

/// The calls that a capability allows, by names, and by numbers that all architectures share.
#[rustfmt::skip]
const BY_CAPABILITY: &[(CapabilitySet, &[c_long], &[u32])] = &[
    (CapabilitySet::DAC_READ_SEARCH, &[SYS_open_by_handle_at], &[]),
    (CapabilitySet::SYS_ADMIN, &[SYS_bpf, SYS_clone, SYS_fanotify_init, SYS_lookup_dcookie, SYS_mount, SYS_perf_event_open, SYS_quotactl, SYS_setdomainname, SYS_sethostname, SYS_setns, SYS_syslog, SYS_umount2, SYS_unshare], &[428 /* open_tree */, 429 /* move_mount */, 430 /* fsopen */, 431 /* fsconfig */, 432 /* fsmount */, 433 /* fspick */, 435 /* clone3 */, 442 /* mount_setattr */, 443 /* quotactl_fd */, 459 /* lsm_get_self_attr */, 460 /* lsm_set_self_attr */, 461 /* lsm_list_modules */]),
    (CapabilitySet::SYS_BOOT, &[SYS_reboot], &[]),
    (CapabilitySet::SYS_CHROOT, &[SYS_chroot], &[]),
    (CapabilitySet::SYS_MODULE, &[SYS_delete_module, SYS_init_module, SYS_finit_module], &[]),
    (CapabilitySet::SYS_PACCT, &[SYS_acct], &[]),
    (CapabilitySet::SYS_PTRACE, &[SYS_kcmp], &[438 /* pidfd_getfd */, 440 /* process_madvise */]),
    (CapabilitySet::SYS_TIME, &[SYS_settimeofday, SYS_clock_settime], &[]),
    (CapabilitySet::SYS_TTY_CONFIG, &[SYS_vhangup], &[]),
    (CapabilitySet::SYS_NICE, &[SYS_get_mempolicy, SYS_mbind, SYS_set_mempolicy], &[450 /* set_mempolicy_home_node */]),
    (CapabilitySet::SYSLOG, &[SYS_syslog], &[]),
    (CapabilitySet::BPF, &[SYS_bpf], &[]),
    (CapabilitySet::PERFMON, &[SYS_perf_event_open], &[]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::DEFAULTS;

    fn allows(capabilities: CapabilitySet, number: c_long) -> bool {
        rules(capabilities).allowed.contains(&u32::try_from(number).unwrap())
    }

    #[test]
    fn default_profile_refuses_what_reaches_host() {
        for number in [
            SYS_mount,
            SYS_umount2,
            SYS_bpf,
            SYS_keyctl,
            SYS_add_key,
            SYS_request_key,
            SYS_unshare,
            SYS_setns,
            SYS_kexec_load,
            SYS_init_module,
            SYS_open_by_handle_at,
            SYS_perf_event_open,
            SYS_reboot,
            SYS_swapon,
            SYS_userfaultfd,
            SYS_io_uring_setup,
            SYS_pivot_root,
            SYS_clock_settime,
            SYS_acct,
            SYS_quotactl,
            SYS_syslog,
        ] {
            assert!(!allows(DEFAULTS, number), "{number}");
        }
        for number in [SYS_read, SYS_execve, SYS_futex, SYS_openat, SYS_chroot, SYS_ptrace, SYS_rseq] {
            assert!(allows(DEFAULTS, number), "{number}");
        }
    }

    #[test]
    fn capability_brings_its_calls() {
        let admin = DEFAULTS | CapabilitySet::SYS_ADMIN;
        assert!(allows(admin, SYS_mount) && allows(admin, SYS_unshare) && allows(admin, i64::from(CLONE3)));
        assert!(rules(admin).exceptions.iter().all(|(number, _)| *number != CLONE3));
        assert!(!allows(admin, SYS_keyctl));
        assert!(allows(CapabilitySet::SYS_TIME, SYS_clock_settime));
        assert!(!allows(CapabilitySet::empty(), SYS_chroot));
        assert!(!allows(DEFAULTS, SYS_pidfd_getfd) && allows(CapabilitySet::SYS_PTRACE, SYS_pidfd_getfd));
    }
}
