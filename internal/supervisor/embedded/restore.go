package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
)

// The revisions of a restored store begin at a point that is unique to the restore: a fixed number for every
// second since the epoch, far more than any store commits. So every restore, of any file and however often,
// continues above all revisions ever published for the cluster, and needs no records of the past for that. A
// watcher of the lost cluster then has to list again. Otherwise it would wait for ever or miss changes.
const perSecond = 10_000_000

var epoch = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// ErrClock says that a restore would not continue above all published revisions.
var ErrClock = errors.New("the clock of the machine where the restore began is behind: correct it, and start the restore again there")

// bump returns the increment that a restore at the given time adds to a snapshot's revision.
func bump(revision int64, at time.Time) (uint64, error) {
	begin := int64(at.Sub(epoch)/time.Second) * perSecond
	if begin <= revision {
		return 0, fmt.Errorf("by the restore's time, %s, revisions continue at %d, and the snapshot is at %d already: %w",
			at.UTC().Format(time.RFC3339), begin, revision, ErrClock)
	}
	return uint64(begin - revision), nil
}

// tokenLayout is how a restore's time is written in its token.
const tokenLayout = "20060102T150405Z"

// RestoreToken names a restore as of a time, to the second.
func RestoreToken(at time.Time) string { return at.UTC().Format(tokenLayout) }

// ParseRestoreToken is the inverse of RestoreToken.
func ParseRestoreToken(token string) (time.Time, error) {
	at, err := time.Parse(tokenLayout, token)
	if err != nil || at.Before(epoch) {
		return time.Time{}, fmt.Errorf("given %q: want the token that the first replica's restore printed, such as %s", token,
			RestoreToken(epoch))
	}
	return at, nil
}

// RestoreConfig of a member's data directory from a snapshot. All members are restored from one file.
type RestoreConfig struct {
	Snapshot       string // the file
	DataDir        string // empty, or without etcd's part; see Config
	Name           string
	PeerURL        string
	InitialCluster string // all members of the new cluster
	// Token of the new cluster. It must differ from that of any live member, so that members of the lost cluster and
	// of this one do not accept each other.
	Token string
	// At is the time of the restore, the same for all members: it determines their first revision.
	At     time.Time
	Logger *slog.Logger
}

// SnapshotInfo describes the content of a snapshot file.
type SnapshotInfo struct {
	Revision int64
	Keys     int
	Bytes    int64
	Version  string // of etcd's storage
}

// ErrNotEmpty says that the target of a restore already contains data.
var ErrNotEmpty = errors.New("there are data of a member")

// CheckSnapshot reads a snapshot's file to its end. It finds files that are cut off or damaged.
func CheckSnapshot(path string, logger *slog.Logger) (SnapshotInfo, error) {
	if err := checkHash(path); err != nil {
		return SnapshotInfo{}, fmt.Errorf("snapshot %s: %w", path, err)
	}
	st, err := snapshot.NewV3(NewZap(logger)).Status(path)
	if err != nil {
		return SnapshotInfo{}, fmt.Errorf("snapshot %s: %w", path, err)
	}
	return SnapshotInfo{Revision: st.Revision, Keys: st.TotalKey, Bytes: st.TotalSize, Version: st.Version}, nil
}

// Restore makes a member's data directory from a snapshot: that of a member of a new cluster with the snapshot's
// content. It cleans up on failure.
func Restore(cfg RestoreConfig) (info SnapshotInfo, err error) {
	lock, err := lockDir(cfg.DataDir)
	if err != nil {
		return info, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if info, err = CheckSnapshot(cfg.Snapshot, cfg.Logger); err != nil {
		return info, err
	}
	dir := filepath.Join(cfg.DataDir, etcdDir)
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return info, fmt.Errorf("restore into %s: %w: move them away first", dir, ErrNotEmpty)
	}
	raise, err := bump(info.Revision, cfg.At)
	if err != nil {
		return info, fmt.Errorf("restore %s: %w", cfg.Snapshot, err)
	}
	// Made beside it and renamed, so that a partial restore is never mistaken for a complete one.
	tmp := dir + ".restoring"
	if err := os.RemoveAll(tmp); err != nil {
		return info, fmt.Errorf("restore into %s: %w", dir, err)
	}
	err = snapshot.NewV3(NewZap(cfg.Logger)).Restore(snapshot.RestoreConfig{
		SnapshotPath: cfg.Snapshot, OutputDataDir: tmp, Name: cfg.Name, PeerURLs: []string{cfg.PeerURL},
		InitialCluster: cfg.InitialCluster, InitialClusterToken: cfg.Token, RevisionBump: raise, MarkCompacted: true,
	})
	if err == nil {
		if err = os.Remove(dir); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	if err == nil {
		err = os.Rename(tmp, dir)
	}
	if err != nil {
		return info, errors.Join(fmt.Errorf("restore %s into %s: %w", cfg.Snapshot, dir, err), os.RemoveAll(tmp))
	}
	return info, nil
}
