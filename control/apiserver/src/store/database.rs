//! The store's file: `objects.redb` in the data folder.
//!
//! ```text
//! table objects   RESOURCE \0 NAMESPACE \0 NAME  ->  the object as JSON
//! table facts     "format"                       ->  2
//!                 "revision"                     ->  the newest assigned resourceVersion
//!                 "print"                        ->  checksum: sum of the objects' hashes
//! ```
//! The revision is separate from the objects because a deletion uses one up and leaves no object. The checksum
//! says whether they are what was written: the database verifies its own checksums only after a crash, and a flipped
//! bit would otherwise be served.

use std::fs::{File, OpenOptions};
use std::hash::RandomState;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use contract::allocator;
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};

use super::change_event::ChangeEvent;
use super::fault_tracking::{DiskFaults, FaultTrackingBackend};
use super::stored_object::SharedStrings;
use super::uid_index::WarmUidEntries;
use super::{ObjectHead, ObjectKey, StoreError, StoredObject};
use support::worker_threads;

const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const METADATA: TableDefinition<'_, &str, u64> = TableDefinition::new("facts");
const FORMAT: u64 = 2;
/// Has no checksum yet, and gets one when it is opened.
const FORMAT_WITHOUT_CHECKSUM: u64 = 1;
const FILE: &str = "objects.redb";

/// Pages the database may keep, in bytes. Memory already holds every object, so this only serves
/// the writer's own look-ups, and a page that is not there comes from the kernel's cache; the library's default is 1 GiB.
const CACHE_BYTES: usize = 256 * 1024;

/// Opens the database, telling what the disk refuses from then on.
type OpenDatabaseFn = Box<dyn Fn(&DiskFaults) -> Result<Database, StoreError> + Send>;

pub(super) struct ObjectDatabase {
    /// `None` after a commit that found no room.
    database: Option<Database>,
    disk_faults: DiskFaults,
    open: OpenDatabaseFn,
    path: PathBuf,
}

#[derive(Debug)]
pub(super) struct DatabaseContents {
    pub(super) revision: u64,
    /// In the order of their keys.
    pub(super) objects: Vec<Arc<StoredObject>>,
    pub(super) rows: WarmUidEntries,
    /// The index of the uids in `rows`.
    pub(super) hasher: RandomState,
    /// Shared strings of the objects.
    pub(super) shared: SharedStrings,
}

impl ObjectDatabase {
    pub(super) fn file_in(dir: &Path) -> PathBuf {
        dir.join(FILE)
    }

    pub(super) fn open(dir: &Path) -> Result<(Self, DatabaseContents), StoreError> {
        let (dir, path) = (dir.to_owned(), Self::file_in(dir));
        let file = path.clone();
        Self::load_from(Box::new(move |faults| open(&dir, &file, faults)), path)
    }

    /// Reads what a database holds.
    pub(super) fn load_from(open: OpenDatabaseFn, path: PathBuf) -> Result<(Self, DatabaseContents), StoreError> {
        let faults = DiskFaults::default();
        // The database asserts much about its own pages, and a disk may have made something else of them.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let disk = Self { database: Some(open(&faults)?), disk_faults: faults, open, path: path.clone() };
            let contents = disk.load().map_err(|why| disk.load_error(why))?;
            Ok((disk, contents))
        }));
        opened.unwrap_or_else(|_| {
            let what = "its pages make no sense".to_owned();
            Err(StoreError::Damaged { path, what })
        })
    }

    /// Makes the changes durable, all or none.
    pub(super) fn commit(&mut self, revision: u64, events: &[ChangeEvent]) -> Result<(), StoreError> {
        self.try_commit(revision, events).map_err(|why| {
            self.database = None; // its own state is of no use after a failure, and its lock is in the way
            self.write_error(&why)
        })
    }

    /// Opens the file again after a commit found no room; answers the revision it holds.
    pub(super) fn reopen(&mut self) -> Result<u64, StoreError> {
        self.database = None;
        self.disk_faults.clear();
        self.database = Some((self.open)(&self.disk_faults).map_err(|why| match why {
            why if !self.disk_faults.is_only_disk_full() => why,
            why => self.write_error(&why),
        })?);
        let revision = self.metadata("revision").map_err(|why| match why {
            why if self.disk_faults.is_only_disk_full() => self.write_error(&why),
            why => self.corruption_error(&why),
        })?;
        Ok(revision.unwrap_or(0))
    }

    fn write_error(&self, why: &dyn ToString) -> StoreError {
        if self.disk_faults.is_only_disk_full() {
            StoreError::Full { path: self.path.clone(), what: why.to_string() }
        } else {
            StoreError::WriterFailed(why.to_string())
        }
    }

    fn load_error(&self, why: LoadError) -> StoreError {
        match why {
            LoadError::Store(why) => why,
            LoadError::Database(why) if self.disk_faults.is_only_disk_full() => self.write_error(&why),
            LoadError::Database(why) => self.corruption_error(&why),
        }
    }

    /// # Errors
    /// `None` after a failure.
    fn database(&self) -> Result<&Database, redb::Error> {
        self.database.as_ref().ok_or(redb::Error::PreviousIo)
    }

    fn metadata(&self, name: &str) -> Result<Option<u64>, redb::Error> {
        let facts = self.database()?.begin_read()?.open_table(METADATA)?;
        Ok(facts.get(name)?.map(|fact| fact.value()))
    }

    fn try_commit(&self, revision: u64, events: &[ChangeEvent]) -> Result<(), redb::Error> {
        // The database's own metadata, some of which outlives thousands of commits: next to it are short-lived pages of 4 KiB.
        let _stays = allocator::long_lived();
        let transaction = self.database()?.begin_write()?;
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            let mut facts = transaction.open_table(METADATA)?;
            let mut sum = facts.get("print")?.map_or(0, |print| print.value());
            for event in events {
                let key = encode(&event.object.key);
                if let Some(before) = &event.before {
                    sum = sum.wrapping_sub(checksum(key.as_bytes(), &before.json()));
                }
                let json = event.object.json();
                if !event.deleted {
                    sum = sum.wrapping_add(checksum(key.as_bytes(), &json));
                }
                if event.deleted {
                    objects.remove(key.as_str())?;
                } else {
                    objects.insert(key.as_str(), &*json)?;
                }
            }
            facts.insert("revision", revision)?;
            facts.insert("print", sum)?;
        }
        transaction.commit()?;
        Ok(())
    }

    fn load(&self) -> Result<DatabaseContents, LoadError> {
        let format = self.create_tables()?;
        let (contents, sum) = self.read_all()?;
        let known = self.metadata("print")?.unwrap_or(0);
        if format == FORMAT && known != sum {
            return Err(LoadError::Store(self.corruption_error(&"its objects are not those that were written")));
        }
        if format != FORMAT {
            let transaction = self.database()?.begin_write().map_err(redb::Error::from)?;
            {
                let mut facts = transaction.open_table(METADATA).map_err(redb::Error::from)?;
                facts.insert("print", sum).map_err(redb::Error::from)?;
                facts.insert("format", FORMAT).map_err(redb::Error::from)?;
            }
            transaction.commit().map_err(redb::Error::from)?;
        }
        Ok(contents)
    }

    /// Makes the tables of a new file; answers the format.
    fn create_tables(&self) -> Result<u64, LoadError> {
        let transaction = self.database()?.begin_write().map_err(redb::Error::from)?;
        let format = {
            let mut facts = transaction.open_table(METADATA).map_err(redb::Error::from)?;
            let found = facts.get("format").map_err(redb::Error::from)?.map(|format| format.value());
            match found {
                Some(FORMAT | FORMAT_WITHOUT_CHECKSUM) => {}
                Some(found) => {
                    let path = self.path.clone();
                    return Err(LoadError::Store(StoreError::Format { path, found, known: FORMAT }));
                }
                None => {
                    facts.insert("format", FORMAT).map_err(redb::Error::from)?;
                }
            }
            transaction.open_table(OBJECTS).map_err(redb::Error::from)?;
            found.unwrap_or(FORMAT)
        };
        transaction.commit().map_err(redb::Error::from)?;
        Ok(format)
    }

    /// All objects in the order of their keys, and the sum of their prints. This thread reads, others make objects of it.
    fn read_all(&self) -> Result<(DatabaseContents, u64), LoadError> {
        let revision = self.metadata("revision")?.unwrap_or(0);
        let transaction = self.database()?.begin_read().map_err(redb::Error::from)?;
        let table = transaction.open_table(OBJECTS).map_err(redb::Error::from)?;
        let mut rows = table.iter().map_err(redb::Error::from)?;
        let pieces = std::iter::from_fn(|| Some(RowBatch::read(&mut rows)).filter(|piece| !piece.is_empty()));
        let (common, sums) = (SharedStrings::default(), RandomState::new());
        let (mut all, mut unread) = (DecodedBatch::default(), None);
        worker_threads::map_in_order(
            pieces,
            |piece| piece.open(revision, &common, &sums),
            |opened| match opened {
                Ok(some) => all.append(some),
                Err(why) => drop(unread.get_or_insert(why)),
            },
        );
        match unread {
            None => {
                let DecodedBatch { objects, rows, checksum: print } = all;
                Ok((DatabaseContents { revision, objects, rows, hasher: sums, shared: common }, print))
            }
            Some(RowError::Object(key)) => Err(LoadError::Store(self.corruption_error(&format!("object {key:?}")))),
            Some(RowError::Database(why)) => Err(why.into()),
        }
    }

    fn corruption_error(&self, what: &dyn ToString) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), what: what.to_string() }
    }
}

fn open(dir: &Path, path: &Path, faults: &DiskFaults) -> Result<Database, StoreError> {
    let unusable = |what: &dyn ToString| StoreError::Unusable { path: path.to_owned(), what: what.to_string() };
    let damaged = |what: &dyn ToString| StoreError::Damaged { path: path.to_owned(), what: what.to_string() };
    let to_store_error = |why: DatabaseError| match why {
        DatabaseError::DatabaseAlreadyOpen => StoreError::InUse(path.to_owned()),
        DatabaseError::Storage(redb::StorageError::Io(why))
            if ![ErrorKind::InvalidData, ErrorKind::UnexpectedEof].contains(&why.kind()) =>
        {
            unusable(&why)
        }
        other => damaged(&other),
    };
    let database = |file| {
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE_BYTES);
        FaultTrackingBackend::file(file, faults)
            .and_then(|file| builder.create_with_backend(file))
            .map_err(to_store_error)
    };
    std::fs::create_dir_all(dir).map_err(|why| unusable(&why))?;
    match file(path, false) {
        Ok(known) if known.metadata().is_ok_and(|known| known.len() == 0) => Err(damaged(&"it is empty")),
        Ok(known) => database(known),
        Err(why) if why.kind() == ErrorKind::NotFound => {
            // The file gets its name when it is a database, so an empty one was made by a user.
            let begun = path.with_extension("begun");
            let made = database(file(&begun, true).map_err(|why| unusable(&why))?)?;
            rename_into_place(&made, &begun, path).map_err(|why| unusable(&why))?;
            Ok(made)
        }
        Err(why) => Err(unusable(&why)),
    }
}

/// The file, which holds Secrets: only the owner may read it.
fn file(path: &Path, is_new: bool) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(is_new).truncate(is_new).mode(0o600).open(path)
}

/// Gives a database its name, which survives a power cut too.
fn rename_into_place(database: &Database, begun: &Path, path: &Path) -> std::io::Result<()> {
    database.begin_write().map_err(std::io::Error::other)?.commit().map_err(std::io::Error::other)?;
    std::fs::rename(begun, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()?;
    Ok(())
}

enum LoadError {
    Store(StoreError),
    Database(redb::Error),
}

impl From<redb::Error> for LoadError {
    fn from(why: redb::Error) -> Self {
        Self::Database(why)
    }
}

fn encode(key: &ObjectKey) -> String {
    format!("{}\0{}\0{}", key.resource, key.namespace, key.name)
}

/// The checksum of one object. Checksums are added, so each bit of one has to depend on each bit of the hash.
fn checksum(key: &[u8], json: &[u8]) -> u64 {
    let sums = (u64::from(crc32c::crc32c(key)) << 32) | u64::from(crc32c::crc32c(json));
    let mixed = (sums ^ (sums >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Rows of the table, as many as are worth handing to another thread. In one piece, because what one thread takes from the heap
/// and another gives back has both wait for each other.
#[derive(Default)]
struct RowBatch {
    /// Keys and objects, one after the other.
    text: Vec<u8>,
    /// Where each key ends, and its object.
    offsets: Vec<(usize, usize)>,
    /// The error after the rows.
    failure: Option<redb::Error>,
}

/// Rows of a [`Piece`], some half a millisecond's work.
const BATCH_ROWS: usize = 128;
/// ... and its bytes, but for the last row's: objects may be large, and some pieces are on their way at once.
const BATCH_BYTES: usize = 1 << 20;

/// The state of a [`Piece`].
#[derive(Default)]
struct DecodedBatch {
    objects: Vec<Arc<StoredObject>>,
    rows: WarmUidEntries,
    /// The sum of their prints.
    checksum: u64,
}

enum RowError {
    /// Rows by key.
    Object(String),
    Database(redb::Error),
}

impl RowBatch {
    fn read(rows: &mut redb::Range<'_, &'static str, &'static [u8]>) -> Self {
        let mut piece = Self::default();
        while piece.offsets.len() < BATCH_ROWS && piece.text.len() < BATCH_BYTES {
            match rows.next() {
                None => break,
                Some(Ok((key, json))) => {
                    piece.text.extend_from_slice(key.value().as_bytes());
                    let key_ends = piece.text.len();
                    piece.text.extend_from_slice(json.value());
                    piece.offsets.push((key_ends, piece.text.len()));
                }
                Some(Err(why)) => {
                    piece.failure = Some(why.into());
                    break;
                }
            }
        }
        piece
    }

    fn is_empty(&self) -> bool {
        self.offsets.is_empty() && self.failure.is_none()
    }

    /// The objects, none of them newer than `revision`.
    fn open(self, revision: u64, common: &SharedStrings, sums: &RandomState) -> Result<DecodedBatch, RowError> {
        if let Some(why) = self.failure {
            return Err(RowError::Database(why));
        }
        let (mut opened, mut begin) = (DecodedBatch::default(), 0);
        for (key_ends, end) in self.offsets {
            let (key, json) = (&self.text[begin..key_ends], &self.text[key_ends..end]);
            let last = opened.objects.last().map(|last| &last.key);
            let object = parse(key, json, last, common).filter(|object| object.resource_version <= revision);
            let wrong = || RowError::Object(String::from_utf8_lossy(key).into_owned());
            let object = Arc::new(object.ok_or_else(wrong)?);
            opened.checksum = opened.checksum.wrapping_add(checksum(key, json));
            opened.rows.add(&object, sums);
            opened.objects.push(object);
            begin = end;
        }
        Ok(opened)
    }
}

impl DecodedBatch {
    fn append(&mut self, others: Self) {
        self.objects.extend(others.objects);
        self.rows.append(others.rows);
        self.checksum = self.checksum.wrapping_add(others.checksum);
    }
}

/// Objects come in the order of their kinds and namespaces, so that both are mostly those of the `last`.
fn parse(key: &[u8], json: &[u8], last: Option<&ObjectKey>, common: &SharedStrings) -> Option<StoredObject> {
    let mut parts = str::from_utf8(key).ok()?.split('\0');
    let (resource, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
    let same = |word: &str, known: Option<&Arc<str>>| {
        known.filter(|known| ***known == *word).map_or_else(|| word.into(), Arc::clone)
    };
    let key = ObjectKey {
        resource: same(resource, last.map(|last| &last.resource)),
        namespace: same(namespace, last.map(|last| &last.namespace)),
        name: name.into(),
    };
    let (head, resource_version) = ObjectHead::read(json)?;
    Some(StoredObject::compressed(key, resource_version, head, json, common, None))
}
