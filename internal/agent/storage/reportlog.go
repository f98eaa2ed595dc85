package storage

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/spool"
)

// This file holds the log of undelivered reports. It writes them to a half's copy and its spool, and reads those of
// earlier incarnations from there. It defines the record format of a report, and the age of a report after a restart.
// pkg/servicenet/spool owns the file; the outbox decides which reports are kept and when they are freed.
//
// A half that has no spool, or one whose disk fails, continues without it and reports why.

// ReportLogConfig sets a keeper.
type ReportLogConfig struct {
	Path   string // of the spool's file
	Size   int64  // of the file, in bytes; 0: no spool
	Origin fault.Origin
	Logger *slog.Logger
	// Boot and Now are the kernel's boot id, and the time since it booted in ns (CLOCK_BOOTTIME).
	Boot [16]byte
	Now  func() int64
	// Copy keeps the reports across a kill, at once and regardless of the disk; the spool keeps them across a boot.
	// Rescued holds the reports of a copy from which the half could not otherwise resume.
	Copy    ReportCopy
	Rescued []CopiedReport
}

// ReportCopy is the half's copy (internal/agent/storage). None of its methods blocks. It counts reports that
// it cannot take, and informs its maintainer.
type ReportCopy interface {
	Reports() []CopiedReport
	PutReport(CopiedReport) error
	FreeReports([]fault.ReportID) error
}

// ReportLog is the spool of one half, or its substitute. Its methods may be called from any goroutine, and none but
// Sync and Close waits for the disk.
type ReportLog struct {
	cfg   ReportLogConfig
	spool *spool.Spool // nil: none
	why   string       // why there is no spool
}

// OpenReportLog always returns a log, and the reports of earlier incarnations, in the order of their ids.
func OpenReportLog(cfg ReportLogConfig) (*ReportLog, []servicenet.Kept) {
	k := &ReportLog{cfg: cfg}
	return k, k.merge(k.openSpool())
}

// openSpool opens the spool if one is configured, and returns its reports.
func (k *ReportLog) openSpool() []servicenet.Kept {
	cfg := k.cfg
	if cfg.Size == 0 {
		k.why = "none is configured"
		return nil
	}
	s, records, err := spool.Open(spool.Config{
		Path: cfg.Path, Size: cfg.Size, Origin: cfg.Origin, Boot: cfg.Boot, Logger: cfg.Logger, Now: cfg.Now,
	})
	if err != nil {
		cfg.Logger.Warn("undelivered reports will be lost when this half ends", "err", err)
		k.why = err.Error()
		return nil
	}
	k.spool = s
	return k.restore(records)
}

// merge adds the copy's reports: a report that is in both is one report. From then on both hold all reports.
func (k *ReportLog) merge(kept []servicenet.Kept) []servicenet.Kept {
	if k.cfg.Copy == nil {
		return kept
	}
	spooled := make(map[fault.ReportID]bool, len(kept))
	for _, s := range kept {
		spooled[s.Report.ID] = true
	}
	copied := make(map[fault.ReportID]bool)
	own := k.cfg.Copy.Reports()
	for i, c := range slices.Concat(own, k.cfg.Rescued) {
		id := fault.ReportID{Origin: k.cfg.Origin, Epoch: c.Epoch, Seq: c.Seq}
		report, err := decodeReport(id, c.Payload)
		if err != nil {
			k.cfg.Logger.Warn("a kept report cannot be read", "id", id.String(), "err", err)
			_ = k.cfg.Copy.FreeReports([]fault.ReportID{id}) // counted there
			continue
		}
		if i >= len(own) {
			_ = k.cfg.Copy.PutReport(c)
		}
		copied[id] = true
		if !spooled[id] {
			kept = append(kept, servicenet.Kept{Report: report, Age: time.Duration(max(k.cfg.Now()-c.At, 0))})
			k.spoolOne(id, c.Payload, c.At)
		}
	}
	for _, s := range kept {
		if id := s.Report.ID; !copied[id] {
			_ = k.cfg.Copy.PutReport(CopiedReport{Epoch: id.Epoch, Seq: id.Seq, At: k.cfg.Now() - int64(s.Age),
				Payload: servicenet.AppendReport(nil, &s.Report)})
		}
	}
	slices.SortFunc(kept, func(a, b servicenet.Kept) int {
		x, y := a.Report.ID, b.Report.ID
		return cmp.Or(cmp.Compare(x.Epoch, y.Epoch), cmp.Compare(x.Seq, y.Seq))
	})
	return kept
}

func decodeReport(id fault.ReportID, payload []byte) (fault.Report, error) {
	r, err := servicenet.ParseReport(payload)
	if err == nil && r.ID != id {
		err = fmt.Errorf("it has the id %s", r.ID)
	}
	return r, err
}

func (k *ReportLog) spoolOne(id fault.ReportID, payload []byte, at int64) {
	if k.spool != nil {
		k.spool.Append(spool.Record{ID: id, Payload: payload, Boot: k.cfg.Boot, At: at})
	}
}

// restore reads the records. It frees unreadable ones, which will never be readable.
func (k *ReportLog) restore(records []spool.Record) []servicenet.Kept {
	var out []servicenet.Kept
	for _, r := range records {
		report, err := decodeReport(r.ID, r.Payload)
		if err != nil {
			k.cfg.Logger.Warn("a kept report cannot be read", "id", r.ID.String(), "err", err)
			k.spool.Free([]fault.ReportID{r.ID})
			continue
		}
		out = append(out, servicenet.Kept{Report: report, Age: k.age(r)})
	}
	return out
}

// age returns how long a record has been in the log. The time for which the machine was off is unknown: after a boot
// the age is at least the time since then.
func (k *ReportLog) age(r spool.Record) time.Duration {
	age := k.cfg.Now()
	if r.Boot == k.cfg.Boot {
		age -= r.At
	}
	return time.Duration(max(age, 0))
}

// usualReport is the room that most reports need, in bytes.
const usualReport = 192

// Keep appends reports that entered the log. They are in the copy when it returns, and on disk soon after.
func (k *ReportLog) Keep(reports []fault.Report) { k.keep(reports, true) }

// KeepCopied is Keep with a spool that loses them: a fault to be injected.
func (k *ReportLog) KeepCopied(reports []fault.Report) { k.keep(reports, false) }

func (k *ReportLog) keep(reports []fault.Report, spooled bool) {
	if k.spool == nil && k.cfg.Copy == nil {
		return
	}
	for i := range reports {
		r := &reports[i]
		b := servicenet.AppendReport(make([]byte, 0, usualReport), r)
		at := k.cfg.Now()
		if k.cfg.Copy != nil {
			_ = k.cfg.Copy.PutReport(CopiedReport{Epoch: r.ID.Epoch, Seq: r.ID.Seq, At: at, Payload: b})
		}
		if spooled {
			k.spoolOne(r.ID, b, at)
		}
	}
}

// Forget frees reports that left the log.
func (k *ReportLog) Forget(ids []fault.ReportID) {
	if len(ids) == 0 {
		return
	}
	if k.cfg.Copy != nil {
		_ = k.cfg.Copy.FreeReports(ids)
	}
	if k.spool != nil {
		k.spool.Free(ids)
	}
}

// Sync waits until all earlier Keep and Forget calls are on disk. It fails without a spool.
func (k *ReportLog) Sync(ctx context.Context) error {
	if k.spool == nil {
		return fmt.Errorf("sync kept reports: no spool: %s", k.why)
	}
	return k.spool.Sync(ctx)
}

// Why returns why reports are not kept; empty: they are.
func (k *ReportLog) Why() string {
	if k.spool == nil {
		return k.why
	}
	return k.spool.Status().Err
}

// Path returns the file's name; empty: no spool is configured.
func (k *ReportLog) Path() string {
	if k.cfg.Size == 0 {
		return ""
	}
	return k.cfg.Path
}

// Size returns the file's size in bytes.
func (k *ReportLog) Size() int64 { return k.cfg.Size }

// Status returns the spool's counters; zeros without one.
func (k *ReportLog) Status() spool.Status {
	if k.spool == nil {
		return spool.Status{Err: k.why}
	}
	return k.spool.Status()
}

// Close flushes unwritten records, within a bound, and closes the file.
func (k *ReportLog) Close() error {
	if k.spool == nil {
		return nil
	}
	return k.spool.Close()
}

// BootID reads the kernel's boot id.
func BootID() ([16]byte, error) {
	const path = "/proc/sys/kernel/random/boot_id"
	b, err := os.ReadFile(path)
	if err != nil {
		return [16]byte{}, fmt.Errorf("boot id: %w", err)
	}
	return parseBootID(strings.TrimSpace(string(b)))
}

func parseBootID(s string) (id [16]byte, err error) {
	raw, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(raw) != len(id) {
		return id, fmt.Errorf("boot id: given %.60q: want a UUID", s)
	}
	return [16]byte(raw), nil
}
