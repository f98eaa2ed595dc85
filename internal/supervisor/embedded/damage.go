package embedded

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/lofamo/lofamo/internal/supervisor/checksum"
)

// This file reads a member's files before etcd does. etcd ends the process at most kinds of damage, often by a panic in a goroutine
// of its own, and notices no change within a value.

// ExitDamaged is the exit code of a replica whose data are damaged: a restart does not help.
const ExitDamaged = 65

// DamageError says that a member cannot use its data.
type DamageError struct {
	File  string
	Cause error
}

// Error names the file, the cause and the remedy.
func (e *DamageError) Error() string { return fmt.Sprintf("%s: %v: %s", e.File, e.Cause, remedy) }

// Unwrap returns the cause.
func (e *DamageError) Unwrap() error { return e.Cause }

const remedy = "this replica's data are damaged: replace it with 'lofamoctl supervisor replace'; " +
	"if no majority of replicas is left, restore a snapshot"

func memberDir(dataDir string) string { return filepath.Join(dataDir, etcdDir, "member") }
func dbFile(dataDir string) string    { return filepath.Join(memberDir(dataDir), "snap", "db") }
func walDir(dataDir string) string    { return filepath.Join(memberDir(dataDir), "wal") }

// checkFiles returns a DamageError if the member with this name cannot use the data in a directory. A directory without data is good.
// It reads all of the data once.
func checkFiles(dataDir, name string) error {
	db, log := dbFile(dataDir), walDir(dataDir)
	if err := checkAccess(dataDir, db, log); err != nil {
		return err
	}
	haveDB, haveLog := exists(db), wal.Exist(log)
	if !haveDB {
		if haveLog {
			return &DamageError{db, errors.New("is missing, but the write-ahead log exists")}
		}
		return nil
	}
	content, err := readDB(db)
	if err != nil {
		return &DamageError{db, err}
	}
	if !haveLog {
		if content.index > 0 {
			return &DamageError{log, fmt.Errorf("the write-ahead log is missing, but %s exists", db)}
		}
		return nil // the first start ended before it made the log
	}
	entries, err := readLog(log)
	if err != nil {
		return &DamageError{log, err}
	}
	received := filepath.Join(filepath.Dir(db), fmt.Sprintf("%016x.snap.db", entries.snapshot)) // from the leader, not in place yet
	switch own, ok := content.members[name]; {
	case entries.last < content.index:
		return &DamageError{log, fmt.Errorf("ends at entry %d, but %s holds entry %d", entries.last, db, content.index)}
	case content.index < entries.snapshot && !exists(received):
		return &DamageError{db, fmt.Errorf("is older than the write-ahead log: it ends at entry %d, before entry %d", content.index,
			entries.snapshot)}
	case ok && own != entries.member:
		return &DamageError{memberDir(dataDir), fmt.Errorf("these are data of member %x, not of %s, which is member %x", entries.member, name,
			own)}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// checkAccess returns an error that names the first file that this process may not read and write. Absent files are good.
func checkAccess(paths ...string) error {
	for _, path := range paths {
		err := filepath.WalkDir(path, func(file string, _ os.DirEntry, err error) error {
			if err == nil || errors.Is(err, os.ErrPermission) {
				err = unix.Access(file, unix.R_OK|unix.W_OK)
			}
			if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
				return fmt.Errorf("%s: this process may not read and write it: %w: give it to the user who runs the supervisor", file, err)
			}
			return nil // absent, or etcd finds out
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// dbContent is what checkFiles needs of a database.
type dbContent struct {
	index   uint64            // of the last entry of the log that it holds
	members map[string]uint64 // IDs by name
}

// readDB reads a whole database. A damaged page sends bbolt to memory that it has not mapped.
func readDB(path string) (out dbContent, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the database has a damaged page: %v", r)
		}
	}()
	info, err := os.Stat(path)
	if err != nil {
		return out, err
	}
	if info.Size() == 0 {
		return out, errors.New("the database is empty") // bbolt would make a new one
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return out, fmt.Errorf("the database cannot be opened: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bolt.Tx) error {
		if tx.Size() > info.Size() {
			return fmt.Errorf("the database is cut off: it has %d bytes of %d", info.Size(), tx.Size())
		}
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error { return out.read(string(name), b) })
	})
	return out, err
}

// read reads a bucket to its end. Keys out of order are those of another page.
func (c *dbContent) read(name string, b *bolt.Bucket) error {
	cursor := b.Cursor()
	var last []byte
	for k, v := cursor.First(); k != nil; k, v = cursor.Next() {
		if last != nil && bytes.Compare(last, k) >= 0 {
			return fmt.Errorf("the database has a damaged page: keys of bucket %s are out of order", name)
		}
		last = k
		var err error
		switch name {
		case schema.Key.String():
			err = checkRevision(k, v)
		case schema.Meta.String():
			if string(k) == string(schema.MetaConsistentIndexKeyName) && len(v) == 8 {
				c.index = binary.BigEndian.Uint64(v)
			}
		case schema.Members.String():
			err = c.addMember(k, v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addMember notes a member of the cluster.
func (c *dbContent) addMember(key, value []byte) error {
	id, err := strconv.ParseUint(string(key), 16, 64)
	var m struct {
		Name string `json:"name"`
	}
	if err == nil {
		err = json.Unmarshal(value, &m)
	}
	if err != nil {
		return fmt.Errorf("the database has a damaged member %q: %w", key, err)
	}
	if m.Name != "" {
		if c.members == nil {
			c.members = make(map[string]uint64)
		}
		c.members[m.Name] = id
	}
	return nil
}

// The keys of the bucket of revisions: revision, underscore, number within the revision, and a mark for a deletion.
const (
	revisionBytes = 8 + 1 + 8
	deletedBytes  = revisionBytes + 1
)

// checkRevision checks one revision of one key of the store.
func checkRevision(k, v []byte) error {
	if len(k) != revisionBytes && len(k) != deletedBytes {
		return fmt.Errorf("the database has a damaged page: a revision of %d bytes", len(k))
	}
	var kv mvccpb.KeyValue
	if err := proto.Unmarshal(v, &kv); err != nil {
		return fmt.Errorf("the database has a damaged revision %x: %w", k, err)
	}
	if len(k) == deletedBytes || len(v) == 0 {
		return nil // a deletion, or the first revision of a restored store
	}
	if revision := binary.BigEndian.Uint64(k); uint64(kv.GetModRevision()) != revision {
		return fmt.Errorf("the database has a damaged revision %d: it is stored as %d", kv.GetModRevision(), revision)
	}
	if _, ok := checksum.Open(kv.GetKey(), kv.GetValue()); !ok {
		return &checksum.DamagedError{Key: string(kv.GetKey())}
	}
	return nil
}

// logContent is what checkFiles needs of a write-ahead log.
type logContent struct {
	member         uint64
	snapshot, last uint64 // indexes of the last snapshot and the last entry
}

// readLog reads the entries after the last snapshot, as etcd does at a start. The end may be torn: a crash interrupted its write.
func readLog(dir string) (out logContent, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the write-ahead log is damaged: %v", r)
		}
	}()
	snapshots, err := wal.ValidSnapshotEntries(zap.NewNop(), dir)
	if err != nil {
		return out, fmt.Errorf("the write-ahead log is damaged: %w", err)
	}
	from := new(walpb.Snapshot)
	if len(snapshots) > 0 {
		from = snapshots[len(snapshots)-1]
	}
	w, err := wal.OpenForRead(zap.NewNop(), dir, from)
	if err != nil {
		return out, fmt.Errorf("the write-ahead log is damaged: %w", err)
	}
	defer func() { _ = w.Close() }() // fails: nothing is open for writing
	metadata, _, entries, err := w.ReadAll()
	var m etcdserverpb.Metadata
	if err == nil {
		err = proto.Unmarshal(metadata, &m)
	}
	if err != nil {
		return out, fmt.Errorf("the write-ahead log is damaged: %w", err)
	}
	out = logContent{member: m.GetNodeID(), snapshot: from.GetIndex(), last: from.GetIndex()}
	if len(entries) > 0 {
		out.last = entries[len(entries)-1].GetIndex()
	}
	return out, nil
}
