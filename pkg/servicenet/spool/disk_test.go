package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/requirements"
	"github.com/lofamo/lofamo/pkg/fault"
)

const testBound = time.Minute

// sickFile is a file whose writes, syncs and the read of its first record fail on demand. A failed write has done its
// first half.
type sickFile struct {
	file
	mu                sync.Mutex
	write, sync, read error
	hang              chan struct{}
	writes            int
}

func (f *sickFile) set(write, sync, read error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.write, f.sync, f.read = write, sync, read
}

func (f *sickFile) WriteAt(b []byte, at int64) (int, error) {
	f.mu.Lock()
	err := f.write
	f.writes++
	f.mu.Unlock()
	if f.hang != nil {
		<-f.hang
	}
	if err != nil {
		n, _ := f.file.WriteAt(b[:len(b)/2], at)
		return n, err
	}
	return f.file.WriteAt(b, at)
}

func (f *sickFile) Sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sync != nil {
		return f.sync
	}
	return f.file.Sync()
}

func (f *sickFile) ReadAt(b []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.read != nil && at == ringStart {
		return 0, f.read
	}
	return f.file.ReadAt(b, at)
}

func (f *sickFile) attach(cfg Config, say *notes) (attached, found, error) {
	a, got, err := attach(cfg, say)
	f.file, a.file = a.file, f
	return a, got, err
}

func TestSpoolContinuesWithoutDisk(t *testing.T) {
	for _, tc := range []struct {
		name        string
		write, sync error
	}{
		{"no space", unix.ENOSPC, nil},
		{"input/output error", unix.EIO, nil},
		{"read-only", unix.EROFS, nil},
		{"sync fails", nil, unix.EIO},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, log := config(t)
			sick := &sickFile{}
			s, _, err := open(cfg, quick(), sick.attach)
			must(t, err)
			s.Append(rec(1, 1, 200))
			sync1(t, s)
			sick.set(tc.write, tc.sync, nil)
			s.Append(rec(1, 2, 200))
			within(t, "word of it", func() bool { return s.Status().Err != "" })
			for seq := range fault.Seq(40) {
				s.Append(rec(1, 3+seq, 200))
			}
			s.Free([]fault.ReportID{id(1, 1), id(1, 2), id(1, 5)})
			within(t, "retries", func() bool { sick.mu.Lock(); defer sick.mu.Unlock(); return sick.writes > 8 })
			sick.set(nil, nil, nil)
			sync1(t, s)
			if st := s.Status(); st.Err != "" || st.Lost != 0 || st.Depth != 39 || st.Freed != 3 {
				t.Errorf("%+v", st)
			}
			must(t, s.Close())
			if log.count("keeps no reports now") != 1 || log.count("keeps reports again") != 1 {
				t.Errorf("said: %s", log.String())
			}
			s, got := reopen(t, cfg)
			if len(got) != 39 || got[0].ID.Seq != 3 || got[2].ID.Seq != 6 || s.Status().Damaged != 0 {
				t.Errorf("%s, %+v", names(got), s.Status())
			}
		})
	}
}

func TestTooManyWait(t *testing.T) {
	cfg, _ := config(t)
	sick := &sickFile{write: unix.EIO}
	tm := quick()
	tm.maxWaiting = 10
	s, _, err := open(cfg, tm, sick.attach)
	must(t, err)
	s.Append(rec(1, 1, 20))
	within(t, "word of it", func() bool { return s.Status().Err != "" })
	for seq := range fault.Seq(15) {
		s.Append(rec(1, 2+seq, 20))
	}
	if st := s.Status(); st.Lost != 5 || st.Depth != 11 { // one is in the batch that fails
		t.Errorf("%+v", st)
	}
	for seq := range fault.Seq(60) { // freed records make room, in any position
		s.Free([]fault.ReportID{id(1, 11-seq), id(2, seq-3)})
		s.Append(rec(2, 1+seq, 20))
	}
	if st := s.Status(); st.Lost != 5 || st.Depth != 4 || st.Freed != 11+56 {
		t.Errorf("%+v", st)
	}
	s.mu.Lock()
	if len(s.waiting) > 40 {
		t.Errorf("%d places for %d that wait", len(s.waiting), s.asleep)
	}
	s.mu.Unlock()
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "are not on disk: write spool: input/output error") {
		t.Errorf("closed with %v", err)
	}
}

func TestCloseGivesUp(t *testing.T) {
	cfg, _ := config(t)
	sick := &sickFile{hang: make(chan struct{})}
	tm := quick()
	tm.close = time.Millisecond
	s, _, err := open(cfg, tm, sick.attach)
	must(t, err)
	s.Append(rec(1, 1, 20))
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "did not answer") {
		t.Errorf("closed with %v", err)
	}
	close(sick.hang)
	<-s.done
}

// TestLostInRing: a report that must move and cannot be read is counted, and the others go on.
func TestLostInRing(t *testing.T) {
	cfg, log := config(t)
	sick := &sickFile{}
	s, _, err := open(cfg, quick(), sick.attach)
	must(t, err)
	s.Append(rec(1, 1, 20))
	sync1(t, s)
	sick.set(nil, nil, unix.EIO)
	for seq := fault.Seq(2); seq < 400; seq++ {
		s.Append(rec(1, seq, 1000))
		sync1(t, s)
		s.Free([]fault.ReportID{id(1, seq)})
	}
	if st := s.Status(); st.Damaged != 1 || st.Depth != 0 || st.Lost != 0 || st.Err != "" {
		t.Errorf("%+v", st)
	}
	if log.count("can no longer be read") != 1 {
		t.Errorf("said: %s", log.String())
	}
	must(t, s.Close())
}

// off makes a spool fail, with a report of its own that it cannot write.
func (f *sickFile) off(t *testing.T, s *Spool) {
	t.Helper()
	f.set(unix.EIO, nil, nil)
	s.Append(rec(9, 9, 0))
	within(t, "word of it", func() bool { return s.Status().Err != "" })
}

// TestFreesMakeRoomAtOnce: records freed in a batch make room for the reports of the same batch.
func TestFreesMakeRoomAtOnce(t *testing.T) {
	cfg, _ := config(t)
	sick := &sickFile{}
	s, _, err := open(cfg, quick(), sick.attach)
	must(t, err)
	var ids []fault.ReportID
	for seq := range fault.Seq(28) { // half of the ring
		s.Append(rec(1, seq, 2000))
		ids = append(ids, id(1, seq))
	}
	sync1(t, s)
	sick.off(t, s)
	s.Free(ids)
	for seq := range fault.Seq(27) {
		s.Append(rec(2, seq, 2000))
	}
	sick.set(nil, nil, nil)
	sync1(t, s)
	if st := s.Status(); st.Full != 0 || st.Lost != 0 || st.Depth != 28 {
		t.Errorf("%+v", st)
	}
	must(t, s.Close())
}

// TestAddedAgain: a report that is freed and added again, while more frees wait than a record holds.
func TestAddedAgain(t *testing.T) {
	cfg, _ := config(t)
	cfg.Size = 1 << 20
	sick := &sickFile{}
	s, _, err := open(cfg, quick(), sick.attach)
	must(t, err)
	var ids []fault.ReportID
	for seq := range fault.Seq(maxFreed + 100) {
		s.Append(rec(1, seq, 10))
		ids = append(ids, id(1, seq))
	}
	sync1(t, s)
	sick.off(t, s)
	s.Free(ids)
	last := rec(1, maxFreed+99, 50)
	s.Append(last)
	sick.set(nil, nil, nil)
	sync1(t, s)
	must(t, s.Close())
	if _, got := reopen(t, cfg); names(got) != "1#615 9#9" || len(got[0].Payload) != 50 {
		t.Errorf("%s", names(got))
	}
}

// TestOpenedLate: a disk that answers only after the start. Its content is kept for the next start.
func TestOpenedLate(t *testing.T) {
	cfg, log := config(t)
	s, _ := reopen(t, cfg)
	s.Append(rec(1, 1, 100))
	must(t, s.Close())
	asked := 0
	s, got, err := open(cfg, quick(), func(cfg Config, say *notes) (attached, found, error) {
		if asked++; asked < 3 {
			return attached{}, found{}, unix.EIO
		}
		return attach(cfg, say)
	})
	must(t, err)
	if len(got) != 0 || s.Status().Err == "" {
		t.Errorf("%s, %+v", names(got), s.Status())
	}
	s.Append(rec(2, 1, 100))
	sync1(t, s)
	if st := s.Status(); st.Recovered != 1 || st.Depth != 2 || st.Err != "" || log.count("sent after the next start") != 1 {
		t.Errorf("%+v: %s", st, log.String())
	}
	must(t, s.Close())
	if _, got := reopen(t, cfg); names(got) != "1#1 2#1" {
		t.Errorf("%s", names(got))
	}
}

// sickPages reads all pages but one.
type sickPages []byte

func (p sickPages) ReadAt(b []byte, at int64) (int, error) {
	if at <= 2*headerStride && at+int64(len(b)) > 2*headerStride {
		return 0, unix.EIO
	}
	return copy(b, p[at:]), nil
}

func TestUnreadablePage(t *testing.T) {
	pages := make(sickPages, 5*headerStride-10)
	for i := range pages {
		pages[i] = 1
	}
	image, unreadable := readPages(pages, int64(len(pages)))
	if unreadable != 1 || len(image) != len(pages) || image[2*headerStride] != 0 || image[2*headerStride-1] != 1 ||
		image[3*headerStride] != 1 || image[len(image)-1] != 1 {
		t.Errorf("%d pages are unreadable", unreadable)
	}
}

func TestFileSystemWithoutFallocate(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	must(t, err)
	_, err = f.WriteString("head")
	must(t, err)
	must(t, fillZeros(f, 200_001))
	b, err := os.ReadFile(f.Name())
	must(t, err)
	if len(b) != 200_001 || string(b[:5]) != "head\x00" {
		t.Errorf("%d bytes, %q", len(b), b[:5])
	}
	must(t, f.Close())
}

// TestInterruptedCallIsRepeated: a signal interrupts fallocate on some file systems, and Go's runtime sends signals at any time.
func TestInterruptedCallIsRepeated(t *testing.T) {
	for _, want := range []error{nil, unix.ENOSPC} {
		calls := 0
		err := ignoringEINTR(func() error {
			if calls++; calls < 3 {
				return unix.EINTR
			}
			return want
		})
		if !errors.Is(err, want) || calls != 3 {
			t.Errorf("%v after %d calls: want %v after 3", err, calls, want)
		}
	}
}

func TestFullDisk(t *testing.T) {
	cfg, log := config(t)
	dir := t.TempDir()
	requirements.SmallDisk(t, dir, 256<<10)
	cfg.Path = filepath.Join(dir, "host.spool")
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	s, got, err := open(cfg, quick(), attach)
	must(t, err)
	if len(got) != 0 || !strings.Contains(s.Status().Err, "no space left") {
		t.Errorf("%+v", s.Status())
	}
	s.Append(rec(1, 1, 100))
	s.Append(rec(1, 2, 100))
	s.Free([]fault.ReportID{id(1, 1)})
	if _, err := os.Lstat(cfg.Path); err == nil && s.Status().Err == "" {
		t.Error("a spool on a full disk")
	}
	must(t, os.Remove(big))
	sync1(t, s)
	if st := s.Status(); st.Err != "" || st.Depth != 1 {
		t.Errorf("%+v", st)
	}
	if log.count("keeps no reports now") != 1 || log.count("keeps reports again") != 1 {
		t.Errorf("said: %s", log.String())
	}
	// Once the file exists, a full disk does not affect it.
	if err := os.WriteFile(big, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	s.Append(rec(1, 3, 100))
	must(t, s.Close())
	cfg.Size = MinSize * 2 // does not fit: the file stays unchanged
	s, got = reopen(t, cfg)
	if names(got) != "1#2 1#3" || s.Status().Err != "" || log.count("it stays at") != 1 {
		t.Errorf("%s, %+v: %s", names(got), s.Status(), log.String())
	}
	must(t, s.Close())
}

// TestReadOnlyFileSystem: stored reports can be read, and are freed when the disk is writable again.
func TestReadOnlyFileSystem(t *testing.T) {
	cfg, log := config(t)
	dir := t.TempDir()
	requirements.SmallDisk(t, dir, 512<<10)
	cfg.Path = filepath.Join(dir, "host.spool")
	s, _ := reopen(t, cfg)
	s.Append(rec(1, 1, 100))
	s.Append(rec(1, 2, 100))
	must(t, s.Close())
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	s, got := reopen(t, cfg)
	if names(got) != "1#1 1#2" || !strings.Contains(s.Status().Err, "read-only") || s.Status().Recovered != 2 {
		t.Errorf("%s, %+v", names(got), s.Status())
	}
	s.Free([]fault.ReportID{id(1, 1)})
	s.Append(rec(2, 1, 100))
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, ""))
	sync1(t, s)
	if st := s.Status(); st.Err != "" || st.Depth != 2 || st.Recovered != 2 {
		t.Errorf("%+v", st)
	}
	must(t, s.Close())
	if log.count("sent after the next start") != 0 {
		t.Errorf("said: %s", log.String())
	}
	s, got = reopen(t, cfg)
	if names(got) != "1#2 2#1" {
		t.Errorf("%s", names(got))
	}
	must(t, s.Close())
}

// watchedFile checks the ring after every write, and also as a torn write would leave it.
type watchedFile struct {
	file
	mu    sync.Mutex // held: writes wait
	path  string
	check func(ring []byte, what string)
}

func (f *watchedFile) attach(cfg Config, say *notes) (attached, found, error) {
	a, got, err := attach(cfg, say)
	f.file, a.file = a.file, f
	return a, got, err
}

func (f *watchedFile) WriteAt(b []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.check == nil {
		return f.file.WriteAt(b, at)
	}
	before, err := os.ReadFile(f.path)
	if err != nil {
		return 0, err
	}
	before = before[ringStart:]
	for cut := 0; cut < len(b); cut += 17 * blockSize {
		ring := slices.Clone(before)
		copy(ring[at-ringStart:], b[:cut])
		f.check(ring, fmt.Sprintf("only the first %d bytes of %d are written", cut, len(b)))
		ring = slices.Clone(before)
		copy(ring[at-ringStart+int64(cut):], b[cut:])
		f.check(ring, fmt.Sprintf("the first %d bytes of %d are not written", cut, len(b)))
	}
	return f.file.WriteAt(b, at)
}

// TestRenumberedReportsAreNeverAbsent appends all reports again under new ids and frees the old ids. At any time, and after a torn
// write, the disk holds every report under one id or the other.
func TestRenumberedReportsAreNeverAbsent(t *testing.T) {
	const n = 600
	cfg, _ := config(t)
	cfg.Size = 1 << 20
	f := &watchedFile{path: cfg.Path}
	s, _, err := open(cfg, quick(), f.attach)
	must(t, err)
	var old []fault.ReportID
	for seq := range fault.Seq(n) {
		s.Append(rec(1, seq, 200))
		old = append(old, id(1, seq))
	}
	sync1(t, s)
	b, err := os.ReadFile(cfg.Path)
	must(t, err)
	h, err := decodeHeader(b)
	must(t, err)
	f.mu.Lock()
	f.check = func(ring []byte, what string) {
		there := map[fault.Seq]bool{}
		for _, e := range scanRing(ring, h.id).reports {
			there[e.key.seq] = true
		}
		if len(there) < n {
			t.Errorf("%s: %d of %d reports are left", what, len(there), n)
		}
	}
	for seq := range fault.Seq(n) {
		r := rec(1, seq, 200)
		r.ID = id(2, seq)
		s.Append(r)
	}
	s.Free(old)
	f.mu.Unlock()
	sync1(t, s)
	must(t, s.Close())
	if _, got := reopen(t, cfg); len(got) != n || got[0].ID != id(2, 0) || got[n-1].ID != id(2, n-1) {
		t.Errorf("%d reports: %s", len(got), names(got))
	}
}

// TestReplacedFileStaysInUseWhenDirectorySyncFails: after the rename only the new file has a name, so the spool must not return to
// the old one.
func TestReplacedFileStaysInUseWhenDirectorySyncFails(t *testing.T) {
	cfg, _ := config(t)
	s, _ := reopen(t, cfg)
	s.Append(rec(1, 1, 100))
	must(t, s.Close())
	var say notes
	old, got, err := attach(cfg, &say)
	must(t, err)
	defer old.file.Close()
	cfg.Size *= 2
	a, err := carryOver(cfg, got, &say, os.Rename, func(string) error { return unix.EIO })
	if err != nil || len(say) != 1 || !strings.Contains(say[0], "input/output error") {
		t.Fatalf("%v: %q", err, say)
	}
	info, err := os.Stat(cfg.Path)
	must(t, err)
	mine, err := a.file.(diskFile).Stat()
	must(t, err)
	if !os.SameFile(info, mine) || info.Size() != cfg.Size {
		t.Errorf("the spool uses a file of %d bytes; under its name there is one of %d bytes", mine.Size(), info.Size())
	}
	must(t, a.file.Close())
	if _, got := reopen(t, cfg); names(got) != "1#1" {
		t.Errorf("%s", names(got))
	}
}

// TestRenumberedReportsDoNotFillTheRing: reports take nearly all of their share, so the old ones must go before all new ones have room.
func TestRenumberedReportsDoNotFillTheRing(t *testing.T) {
	const n = 1400
	cfg, _ := config(t)
	cfg.Size = 1 << 20
	f := &watchedFile{path: cfg.Path}
	s, _, err := open(cfg, quick(), f.attach)
	must(t, err)
	for epoch := range fault.Epoch(3) {
		var old []fault.ReportID
		f.mu.Lock()
		for seq := range fault.Seq(n) {
			s.Append(rec(epoch+1, seq, 200))
			old = append(old, id(epoch, seq))
		}
		s.Free(old)
		f.mu.Unlock()
		sync1(t, s)
	}
	if st := s.Status(); st.Full != 0 || st.Lost != 0 || st.Depth != n {
		t.Errorf("%+v", st)
	}
	must(t, s.Close())
	if _, got := reopen(t, cfg); len(got) != n || got[0].ID != id(3, 0) {
		t.Errorf("%d reports", len(got))
	}
}

// TestRemovedFileIsMadeAgain: whoever removes the file of a running spool takes no report away, not even while none is added. The status
// says so if there can be no new file, or if another file stands in its place.
func TestRemovedFileIsMadeAgain(t *testing.T) {
	cfg, log := config(t)
	tm := quick()
	tm.look = 5 * time.Millisecond
	s, _, err := open(cfg, tm, attach)
	must(t, err)
	for seq := fault.Seq(1); seq <= 3; seq++ {
		s.Append(rec(1, seq, 100))
	}
	s.Free([]fault.ReportID{id(1, 2)})
	sync1(t, s)
	exists := func() bool {
		_, err := os.Stat(cfg.Path)
		return err == nil
	}
	must(t, os.Remove(cfg.Path))
	within(t, "new file without a new report", exists)
	must(t, os.Remove(cfg.Path))
	s.Append(rec(1, 4, 100))
	sync1(t, s)
	s.Free([]fault.ReportID{id(1, 1)})
	sync1(t, s)
	if st := s.Status(); st.Err != "" || st.Depth != 2 || st.Damaged != 0 || !strings.Contains(log.String(), "was removed") {
		t.Errorf("%+v, log %s", st, log)
	}

	other := cfg.Path + ".other"
	must(t, os.WriteFile(other, nil, 0o600))
	must(t, os.Rename(other, cfg.Path)) // in one step: the writer must not see the name gone
	within(t, "status about the other file", func() bool { return strings.Contains(s.Status().Err, "another file") })
	must(t, os.Remove(cfg.Path))
	within(t, "status without an error", func() bool { return s.Status().Err == "" })

	dir := filepath.Dir(cfg.Path)
	must(t, os.Rename(dir, dir+".away"))
	within(t, "status about the lost directory", func() bool { return strings.Contains(s.Status().Err, "removed") })
	must(t, os.Rename(dir+".away", dir))
	within(t, "status without an error", func() bool { return s.Status().Err == "" })
	must(t, s.Close())
	if _, got := reopen(t, cfg); names(got) != "1#3 1#4" {
		t.Errorf("after a restart: %s, want 1#3 1#4", names(got))
	}
}

// TestRestoredFileIsNotReplaced: somebody removes the file of a running spool and puts another one in its place just before the spool's
// new file gets that name.
func TestRestoredFileIsNotReplaced(t *testing.T) {
	cfg, _ := config(t)
	s, _ := reopen(t, cfg)
	s.Append(rec(1, 1, 100))
	must(t, s.Close())
	var say notes
	old, _, err := attach(cfg, &say)
	must(t, err)
	defer old.file.Close()
	must(t, os.Remove(cfg.Path))
	must(t, os.WriteFile(cfg.Path, []byte("restored"), 0o600))
	if _, _, err := replace(cfg, old.file.(diskFile).File, old.ring, &say); err == nil || !strings.Contains(err.Error(), "another file") {
		t.Errorf("error %v, want one about another file", err)
	}
	if b, err := os.ReadFile(cfg.Path); err != nil || string(b) != "restored" {
		t.Errorf("the other file has %d bytes, error %v: want it unchanged", len(b), err)
	}
	if _, err := os.Stat(cfg.Path + ".new"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the spool's new file: error %v, want it removed", err)
	}
}

// TestRemovedFileThatCouldNotShrinkIsMadeAgain: the reports need a file that is larger than configured.
func TestRemovedFileThatCouldNotShrinkIsMadeAgain(t *testing.T) {
	const n = 1400
	cfg, log := config(t)
	cfg.Size = 1 << 20
	s, _ := reopen(t, cfg)
	for seq := range fault.Seq(n) {
		s.Append(rec(1, seq+1, 200))
	}
	must(t, s.Close())
	cfg.Size = MinSize
	s, _, err := open(cfg, quick(), attach)
	must(t, err)
	if !strings.Contains(log.String(), "do not fit") {
		t.Errorf("log %s, want that the reports do not fit", log)
	}
	must(t, os.Remove(cfg.Path))
	s.Append(rec(1, n+1, 200))
	sync1(t, s)
	if st := s.Status(); st.Err != "" || st.Depth != n+1 || st.Damaged != 0 {
		t.Errorf("%+v", st)
	}
	must(t, s.Close())
	if _, got := reopen(t, cfg); len(got) != n+1 {
		t.Errorf("after a restart: %d reports, want %d", len(got), n+1)
	}
}
