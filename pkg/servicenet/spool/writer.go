package spool

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// mostAtOnce bounds the bytes encoded under the lock: some 20 microseconds. Records that come meanwhile share the
// next fdatasync.
const mostAtOnce = 64 << 10

// attachFunc opens the file; see attach.
type attachFunc func(cfg Config, say *notes) (attached, found, error)

// writer is the goroutine that owns the file and the ring.
//
//	        error                       ring full
//	off ◄─────────── keeping ─────────────────────────► full
//	 │                 ▲  ▲                               │
//	 └─────────────────┘  └───────────────────────────────┘
//	 written again, after the back-off            room again
//
// In off and full, reports wait in memory, within bounds.
type writer struct {
	*Spool
	attach  attachFunc
	file    file // nil: not open
	ring    *ring
	pending *batch // under way, or failed: it is written again unchanged
	adopted bool   // the records found at the start are counted

	moveUntil uint64 // reports from this record on have been moved already; 0: not moving

	off     error // why the disk is not used; nil: it is
	full    bool
	backoff time.Duration
	retry   *time.Timer
}

// open opens the file and takes over its records; fresh counts the reports in the file that are new here.
func (w *writer) open() (got found, fresh int, err error) {
	var say notes
	a, got, err := w.attach(w.cfg, &say)
	for _, text := range say {
		w.log.Warn(text)
	}
	w.file, w.ring = a.file, a.ring
	return got, w.adopt(got), err
}

// adopt makes the reports on disk known. After a late open some may have been freed meanwhile.
func (w *writer) adopt(got found) (fresh int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range got.reports {
		if it, ok := w.known[e.key]; ok && it != nil {
			it.older = true
		} else if !ok && !w.freeing[e.key] {
			w.known[e.key] = nil
			fresh++
		}
	}
	w.status.Recovered += uint64(fresh)
	if w.ring != nil {
		w.status.Bytes = w.ring.bytes
	}
	if !w.adopted && got.next > 0 {
		w.adopted = true
		w.status.Damaged += uint64(got.damaged)
	}
	return fresh
}

func (w *writer) run() {
	defer close(w.done)
	look := time.NewTicker(w.timing.look)
	defer look.Stop()
	for {
		var retry <-chan time.Time
		if w.retry != nil {
			retry = w.retry.C
		}
		select {
		case <-w.wake:
			if w.off != nil {
				continue // the back-off decides
			}
		case <-look.C: // for a removed file
			if w.off != nil {
				continue
			}
		case <-retry:
		case <-w.stop:
			w.work()
			w.end()
			return
		}
		w.work()
	}
}

// end lets go of the file.
func (w *writer) end() {
	if w.retry != nil {
		w.retry.Stop()
	}
	if w.file == nil {
		return
	}
	if err := w.file.Close(); err != nil {
		w.log.Warn("close spool", "err", err)
	}
}

// work writes until there is nothing to write, or it fails.
func (w *writer) work() {
	for {
		more, err := w.step()
		if err != nil {
			w.becomeOff(err)
			return
		}
		if !more {
			return
		}
	}
}

// step writes one batch, and reports whether there may be another.
func (w *writer) step() (more bool, err error) {
	if w.file == nil {
		_, fresh, err := w.open()
		if fresh > 0 {
			w.log.Warn("the spool could be read only now: its reports are sent after the next start", "reports", fresh)
		}
		if err != nil {
			return false, err
		}
	}
	if w.pending == nil {
		if err := w.followName(); err != nil {
			return false, err
		}
		w.pending = w.next()
	}
	if w.pending == nil {
		if w.off != nil {
			w.becomeKeeping()
		}
		w.settle()
		return false, nil
	}
	if err := write(w.file, w.pending); err != nil {
		return false, fmt.Errorf("write spool: %w", err)
	}
	w.ring.commit(w.pending)
	w.pending = nil
	if w.off != nil {
		w.becomeKeeping()
	}
	w.settle()
	return true, nil
}

// followName continues in a new file, with the same reports, if somebody has removed the spool's file.
func (w *writer) followName() error {
	f, ok := w.file.(diskFile)
	if !ok {
		return nil // a test's file has no name
	}
	if gone, err := removed(f.File, w.cfg.Path); err != nil || !gone {
		return err
	}
	var say notes
	a, got, err := replace(w.cfg, f.File, w.ring, &say)
	if err != nil {
		return fmt.Errorf("the file was removed, and there is no new one: %w", err)
	}
	w.file, w.ring, w.moveUntil = a.file, a.ring, 0
	for _, text := range say {
		w.log.Warn(text)
	}
	w.log.Warn("the spool's file was removed: its reports are in a new one", "reports", len(got.reports))
	if err := f.Close(); err != nil {
		w.log.Warn("close the removed spool", "err", err)
	}
	return nil
}

// settle wakes the waiters.
func (w *writer) settle() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writing = 0
	w.status.Bytes = w.ring.bytes
	close(w.settled)
	w.settled = make(chan struct{})
}

// next makes the next batch; nil when there is no work, or no room for the batch.
func (w *writer) next() *batch {
	w.mu.Lock()
	frees, reports := len(w.freed) > 0, len(w.waiting) > 0
	w.mu.Unlock()
	if !frees && !reports {
		if w.full { // the reports that waited were freed
			w.becomeFull(false)
		}
		return nil
	}
	enough := w.ring.roomForFrees()
	if reports && w.ring.bytes < w.ring.mostReports() {
		enough = w.ring.roomForReports()
	}
	if enough {
		w.moveUntil = 0
	} else if b := w.makeRoom(); b != nil {
		return b
	}
	b := w.ring.begin()
	if full := w.take(b); full != w.full {
		w.becomeFull(full)
	}
	if b.empty() {
		return nil
	}
	if len(b.freed) > 0 {
		w.moveUntil = 0 // there will be something to be gained again
	}
	return b
}

// makeRoom makes a batch that moves the oldest reports to the head, or records on disk that they have been moved.
// Nil: all were moved, and no more room can be gained.
func (w *writer) makeRoom() *batch {
	if b := w.ring.mark(); b != nil {
		return b
	}
	w.moveUntil = cmp.Or(w.moveUntil, w.ring.next)
	b := w.ring.begin()
	for _, s := range w.ring.oldest() {
		if s.number >= w.moveUntil {
			break
		}
		r, ok := w.readBack(s)
		if !ok {
			w.drop(s.key)
			continue
		}
		if !b.report(r, 2*blockSize) {
			break
		}
	}
	if b.empty() {
		return w.ring.mark() // if unreadable reports made some room
	}
	return b
}

// readBack reads a report that must move.
func (w *writer) readBack(s slot) (Record, bool) {
	data := make([]byte, s.length)
	at := s.place % w.ring.size
	if _, err := w.file.ReadAt(data, ringStart+at); err != nil {
		w.log.Error("a report in the spool can no longer be read", "epoch", s.key.epoch, "seq", s.key.seq, "err", err)
		return Record{}, false
	}
	e, ok := decodeEntry(data, w.ring.id, at)
	if !ok || e.number != s.number {
		w.log.Error("a report in the spool is garbled", "epoch", s.key.epoch, "seq", s.key.seq)
		return Record{}, false
	}
	return e.record(w.cfg.Origin), true
}

// drop gives up a report that the disk lost.
func (w *writer) drop(k key) {
	w.ring.forget(k)
	w.ring.advanceTail()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.Damaged++
	if it, ok := w.known[k]; ok && it == nil {
		delete(w.known, k)
	}
}

// take moves waiting records into the batch, and reports whether the ring has no room for the next report. The disk may keep
// any part of a batch, so a free waits until the reports that were appended before it are on disk: one of them may be the freed report
// under a new id. If the ring has no room for these reports, the free goes first.
func (w *writer) take(b *batch) (full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writing = 0
	w.dropFreed()
	before := uint64(math.MaxUint64)
	if len(w.waiting) > 0 {
		before = w.waiting[0].order
	}
	w.takeFrees(b, before)
	full = w.takeReports(b)
	if full && len(w.freed) > 0 {
		if !b.empty() {
			return w.full // the next batch decides
		}
		w.takeFrees(b, math.MaxUint64)
		full = w.takeReports(b)
	}
	if full && !w.waiting[0].full {
		w.waiting[0].full = true
		w.status.Full++
	}
	return full
}

// takeFrees moves the pending frees of lower orders into the batch, grouped by epoch.
func (w *writer) takeFrees(b *batch, before uint64) {
	groups := map[fault.Epoch][]fault.Seq{}
	var epochs []fault.Epoch // in the order of the calls
	taken := 0
	for _, f := range w.freed {
		if f.order >= before || len(groups[f.epoch]) == maxFreed {
			break
		}
		taken++
		if _, onDisk := w.ring.where[f.key]; !onDisk {
			continue
		}
		if groups[f.epoch] == nil {
			epochs = append(epochs, f.epoch)
		}
		groups[f.epoch] = append(groups[f.epoch], f.seq)
	}
	noRoom := map[fault.Epoch]bool{}
	for _, e := range epochs {
		noRoom[e] = !b.free(e, groups[e], w.ring.freeReserve())
	}
	var again []pendingFree
	for _, f := range w.freed[:taken] {
		if noRoom[f.epoch] {
			again = append(again, f)
			continue
		}
		delete(w.freeing, f.key)
		w.begin(f.order)
	}
	w.freed = append(again, w.freed[taken:]...)
}

// takeReports moves waiting reports into the batch, as far as there is room, and reports whether the next one finds none.
func (w *writer) takeReports(b *batch) (full bool) {
	for len(w.waiting) > 0 && b.head-w.ring.head < mostAtOnce {
		it := w.waiting[0]
		k := keyOf(it.record.ID)
		if w.freeing[k] && !it.freed {
			break // or the free of its older record, which is still unwritten, would remove it
		}
		if !it.freed {
			if full = !b.admits(it.record); full || !b.report(it.record, w.ring.reportReserve()) {
				break
			}
			w.known[k] = nil
			w.asleep--
			w.begin(it.order)
		}
		w.waiting = w.waiting[1:]
	}
	return full || b.empty() && len(w.waiting) > 0
}

// begin counts an order to the batch under way.
func (w *writer) begin(order uint64) {
	if w.writing == 0 || order < w.writing {
		w.writing = order
	}
}

// becomeOff continues without the disk, and says why when that is news.
func (w *writer) becomeOff(err error) {
	if w.off != nil {
		w.backoff = min(2*w.backoff, w.timing.maxRetry)
	} else {
		w.backoff = w.timing.retry
		w.log.Warn("the spool keeps no reports now: they are lost if this half ends", "err", err)
	}
	w.off = err
	w.retry = time.NewTimer(w.backoff)
	w.tell()
}

// becomeKeeping: the disk works again.
func (w *writer) becomeKeeping() {
	w.off, w.retry = nil, nil
	w.tell()
	w.log.Info("the spool keeps reports again", "lost", w.Status().Lost)
}

// becomeFull: the ring has no room for the next report, or has it again, or no report waits for room.
func (w *writer) becomeFull(full bool) {
	w.full = full
	w.tell()
	if full {
		w.log.Warn("the spool is full: the newest reports are lost if this half ends", "bytes", w.ring.bytes)
	} else {
		w.log.Info("the spool keeps all reports again", "bytes", w.ring.bytes)
	}
}

// tell updates the status.
func (w *writer) tell() {
	text := ""
	switch {
	case w.off != nil:
		text = w.off.Error()
	case w.full:
		text = fmt.Sprintf("full: uncommitted reports take %d bytes of at most %d", w.ring.bytes, w.ring.mostReports())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.Err = text
}
