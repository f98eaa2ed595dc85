package spool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Record is a report in the spool.
type Record struct {
	ID      fault.ReportID
	Payload []byte   // at most MaxPayload bytes; owned by the spool, so do not change it any more
	Boot    [16]byte // boot id of the kernel under which it was added
	At      int64    // CLOCK_BOOTTIME when it was added, in ns; says nothing under another boot id
}

// Config sets a spool.
type Config struct {
	Path   string       // of the file; beside it PATH.new and PATH.bad
	Size   int64        // of the file, in bytes: MinSize to MaxSize
	Origin fault.Origin // whose reports these are
	Boot   [16]byte     // boot id of the kernel, for records that bring none
	Logger *slog.Logger // nil: says nothing
	Now    func() int64 // CLOCK_BOOTTIME in ns, for records that bring no boot id
}

// Bounds of Config.Size, in bytes. The ring is read whole when it is opened.
const (
	MinSize = 128 << 10
	MaxSize = 64 << 20
)

// Validate names every bad field at once.
func (c Config) Validate() error {
	var errs []error
	bad := func(field string, given any, want string) {
		errs = append(errs, fmt.Errorf("%s: given %v: want %s", field, given, want))
	}
	if c.Path == "" {
		bad("Path", "none", "a file name")
	}
	if c.Size < MinSize || c.Size > MaxSize {
		bad("Size", c.Size, fmt.Sprintf("%d to %d bytes", MinSize, MaxSize))
	}
	if n := len(c.Origin.Node); n == 0 || n > maxNodeID || !c.Origin.Half.Valid() {
		bad("Origin", c.Origin, fmt.Sprintf("a half of a node with an id of 1 to %d bytes", maxNodeID))
	}
	if c.Now == nil {
		bad("Now", "none", "a clock")
	}
	return errors.Join(errs...)
}

// Status is the state of a spool. The counts are since Open.
type Status struct {
	Err       string // why reports are not kept now; empty: they are
	Appended  uint64 // reports passed to Append that are, or will be, on disk
	Freed     uint64 // reports that Free has taken away
	Lost      uint64 // reports that were not kept: refused, or too many waited for the disk
	Full      uint64 // reports that found no room in the ring and had to wait for it
	Recovered uint64 // reports found when the file was opened
	Damaged   uint64 // records, or pages, that should have been there
	Bytes     int64  // size of the un-freed reports on disk
	Depth     int    // un-freed reports, on disk or waiting for it
}

// timing sets the delays; tests use shorter ones.
type timing struct {
	retry, maxRetry time.Duration // first and longest wait before the disk is tried again
	close           time.Duration // most that Close waits
	look            time.Duration // interval of checks, while idle, that the file still exists
	maxWaiting      int           // reports that wait for the disk
}

func defaultTiming() timing {
	return timing{retry: time.Second, maxRetry: time.Minute, close: 2 * time.Second, look: 10 * time.Second, maxWaiting: 4096}
}

// item is a report on its way to the disk.
type item struct {
	record Record
	order  uint64 // of the Append
	freed  bool   // while it waited: not written at all
	older  bool   // the disk holds an older record of the same report
	full   bool   // counted in Status.Full
}

// pendingFree is a report that must be freed on disk.
type pendingFree struct {
	key
	order uint64 // of the Free
}

// Spool keeps the reports of one half on disk. Its methods never wait for the disk, except for Open, Sync and Close.
// Waiting reports are bounded: beyond the bound, the newest is dropped, and counted.
type Spool struct {
	cfg    Config
	timing timing
	log    *slog.Logger

	wake chan struct{} // holds one: there is something to write
	stop chan struct{} // closed by Close
	done chan struct{} // closed by the writer

	mu      sync.Mutex // guards the fields below; never held over I/O
	closed  bool
	order   uint64        // of the last Append or Free
	waiting []*item       // by order
	asleep  int           // of waiting: those not freed
	known   map[key]*item // un-freed reports: waiting, or nil: on disk, or in a batch
	freed   []pendingFree // on disk, to be freed there; by order
	freeing map[key]bool  // the same
	writing uint64        // the first order in the batch under way; 0: none
	settled chan struct{} // closed and renewed when something is on disk
	status  Status        // without Depth
}

// Open reads the file, or makes it, and returns the un-freed reports, in the order of their ids. They stay in the
// spool until they are freed. A file of another size is replaced by one of the right size with the same reports. If
// the disk does not allow it, the spool goes on without the disk, and Status says so. Open returns an error if the
// file belongs to another origin, is of another version, or is in use (ErrInUse), or if cfg is invalid.
func Open(cfg Config) (*Spool, []Record, error) { return open(cfg, defaultTiming(), attach) }

func open(cfg Config, tm timing, attach attachFunc) (*Spool, []Record, error) {
	if err := cfg.Validate(); err != nil {
		return nil, nil, fmt.Errorf("open spool: %w", err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Spool{
		cfg: cfg, timing: tm, log: cfg.Logger.With("spool", cfg.Path),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		known: map[key]*item{}, freeing: map[key]bool{}, settled: make(chan struct{}),
	}
	w := &writer{Spool: s, attach: attach}
	got, _, err := w.open()
	if err != nil && !isDisk(err) {
		return nil, nil, fmt.Errorf("open spool: %w", err)
	}
	records := make([]Record, 0, len(got.reports))
	for _, e := range got.reports {
		r := e.record(cfg.Origin)
		r.Payload = append([]byte(nil), r.Payload...) // not the whole file for one report
		records = append(records, r)
	}
	if err != nil {
		w.becomeOff(err)
	}
	go w.run()
	return s, records, nil
}

func keyOf(id fault.ReportID) key { return key{id.Epoch, id.Seq} }

func (e *entry) record(o fault.Origin) Record {
	return Record{ID: fault.ReportID{Origin: o, Epoch: e.key.epoch, Seq: e.key.seq}, Payload: e.payload, Boot: e.boot, At: e.added}
}

// Append keeps a report, or the newer form of one. It does not wait.
func (s *Spool) Append(r Record) {
	if r.Boot == ([16]byte{}) {
		r.Boot, r.At = s.cfg.Boot, s.cfg.Now()
	}
	refused := r.ID.Origin != s.cfg.Origin || len(r.Payload) > MaxPayload
	s.mu.Lock()
	ok := !refused && !s.closed && s.enqueue(r)
	if ok {
		s.status.Appended++
	} else {
		s.status.Lost++
	}
	s.mu.Unlock()
	switch {
	case ok:
		s.poke()
	case refused:
		s.log.Error("report refused by the spool", "report", r.ID, "bytes", len(r.Payload), "most", MaxPayload, "want", s.cfg.Origin)
	}
}

func (s *Spool) enqueue(r Record) bool {
	k := keyOf(r.ID)
	it, known := s.known[k]
	if known && it != nil {
		it.record = r
		return true
	}
	if s.asleep >= s.timing.maxWaiting {
		return false
	}
	s.order++
	it = &item{record: r, order: s.order, older: known}
	s.known[k] = it
	s.waiting = append(s.waiting, it)
	s.asleep++
	return true
}

// Free removes COMMITTED reports; it ignores unknown ones. It does not wait.
func (s *Spool) Free(ids []fault.ReportID) {
	s.mu.Lock()
	for _, id := range ids {
		if id.Origin == s.cfg.Origin {
			s.free(keyOf(id))
		}
	}
	s.mu.Unlock()
	s.poke()
}

func (s *Spool) free(k key) {
	it, ok := s.known[k]
	if !ok {
		return
	}
	delete(s.known, k)
	s.status.Freed++
	if it != nil {
		it.freed = true
		it.record.Payload = nil
		s.asleep--
		s.dropFreed()
		if !it.older {
			return
		}
	}
	if s.freeing[k] {
		return
	}
	s.order++
	s.freed = append(s.freed, pendingFree{k, s.order})
	s.freeing[k] = true
}

// dropFreed keeps the list in proportion to the reports that really wait in it.
func (s *Spool) dropFreed() {
	for len(s.waiting) > 0 && s.waiting[0].freed {
		s.waiting = s.waiting[1:]
	}
	if len(s.waiting) <= 2*s.asleep+16 {
		return
	}
	kept := make([]*item, 0, s.asleep)
	for _, it := range s.waiting {
		if !it.freed {
			kept = append(kept, it)
		}
	}
	s.waiting = kept
}

func (s *Spool) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Status returns the state of the spool.
func (s *Spool) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.Depth = len(s.known)
	return st
}

// Sync waits until everything that was appended and freed before is on disk.
func (s *Spool) Sync(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	upTo := s.order
	for ended := false; !s.isSettled(upTo); {
		if err := ctx.Err(); err != nil || ended {
			return fmt.Errorf("sync spool %s: not on disk: %w", s.cfg.Path, errors.Join(err, s.trouble(ended)))
		}
		changed := s.settled
		s.mu.Unlock()
		select {
		case <-changed:
		case <-s.done:
			ended = true
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
	return nil
}

// trouble is why something is not on disk, as far as is known.
func (s *Spool) trouble(ended bool) error {
	switch {
	case s.status.Err != "":
		return errors.New(s.status.Err)
	case ended:
		return errors.New("the spool is closed")
	default:
		return nil
	}
}

// isSettled reports whether everything up to an order is on disk.
func (s *Spool) isSettled(upTo uint64) bool {
	return (s.writing == 0 || s.writing > upTo) &&
		(len(s.waiting) == 0 || s.waiting[0].order > upTo) &&
		(len(s.freed) == 0 || s.freed[0].order > upTo)
}

// Close writes waiting records and closes the file; it gives up when the disk takes too long. It returns an error if
// records could not be written.
func (s *Spool) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.stop)
	}
	s.mu.Unlock()
	t := time.NewTimer(s.timing.close)
	defer t.Stop()
	select {
	case <-s.done:
	case <-t.C:
		return fmt.Errorf("close spool %s: the disk did not answer within %s", s.cfg.Path, s.timing.close)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isSettled(s.order) {
		return fmt.Errorf("close spool %s: %d reports and %d frees are not on disk: %s", s.cfg.Path, s.asleep, len(s.freed), s.status.Err)
	}
	return nil
}
