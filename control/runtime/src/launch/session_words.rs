//! The arguments of a client's command on its stdin, before the client's own input: their length, then the arguments.
//!
//! One pipe for both, because a process is started with three descriptors and no others. The arguments fit into the pipe, so that
//! writing them never blocks, also if the process does not run.

use std::io::{self, PipeReader, PipeWriter, Write as _};

use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};

/// The maximum size of the arguments: what a pipe of an unprivileged user may hold (`/proc/sys/fs/pipe-max-size`).
const WORDS_BYTES_MAX: usize = (1 << 20) - LENGTH_BYTES;
const LENGTH_BYTES: usize = size_of::<u64>();

/// A pipe that contains `words`.
pub(super) fn pipe(words: &[u8]) -> io::Result<(PipeReader, PipeWriter)> {
    if words.len() > WORDS_BYTES_MAX {
        return Err(io::Error::other(format!(
            "the command and the variables of the instance have {} bytes, the limit is {WORDS_BYTES_MAX}; shorten them",
            words.len()
        )));
    }
    let (reader, mut writer) = io::pipe()?;
    let length = LENGTH_BYTES + words.len();
    ensure_capacity(&writer, length)?;
    writer.write_all(&(words.len() as u64).to_be_bytes())?;
    writer.write_all(words)?;
    Ok((reader, writer))
}

/// The kernel makes smaller pipes for a user that has many of them.
fn ensure_capacity(pipe: &PipeWriter, bytes: usize) -> io::Result<()> {
    if bytes > fcntl_getpipe_size(pipe)? {
        fcntl_setpipe_size(pipe, bytes).map_err(|why| {
            let why = io::Error::from(why);
            io::Error::new(why.kind(), format!("a pipe of {bytes} bytes: {why}; see fs.pipe-user-pages-soft"))
        })?;
    }
    Ok(())
}

/// Reads the arguments from stdin, and nothing after them. The input that follows is the program's.
pub(crate) fn read(words: &mut Vec<u8>) -> io::Result<()> {
    let mut length = [0; LENGTH_BYTES];
    read_exact(&mut length)?;
    let length = usize::try_from(u64::from_be_bytes(length)).ok().filter(|length| *length <= WORDS_BYTES_MAX);
    words.resize(length.ok_or(io::ErrorKind::InvalidData)?, 0);
    read_exact(words)
}

/// Without the standard library's buffer, which would take some of the input too.
fn read_exact(mut rest: &mut [u8]) -> io::Result<()> {
    while !rest.is_empty() {
        let count = rustix::io::read(rustix::stdio::stdin(), &mut *rest)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        rest = &mut rest[count..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn words_fit_into_their_pipe() {
        for length in [0, 1, 64 * 1024, 5 * 64 * 1024] {
            let (mut reader, writer) = pipe(&vec![7; length]).unwrap();
            drop(writer);
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            assert_eq!(all.len(), LENGTH_BYTES + length);
            assert_eq!(all[..LENGTH_BYTES], (length as u64).to_be_bytes());
        }
        assert!(pipe(&vec![7; WORDS_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn small_pipe_is_enlarged() {
        let (_reader, writer) = io::pipe().unwrap();
        fcntl_setpipe_size(&writer, 4096).unwrap();
        ensure_capacity(&writer, 4097).unwrap();
        assert!(fcntl_getpipe_size(&writer).unwrap() > 4096);
    }
}
