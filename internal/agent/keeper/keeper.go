// Package keeper gives a half's undelivered reports to its spool, and takes those of earlier lives back
// out of it: how a report lies in a record, and how old it is after a restart. The file itself is
// pkg/servicenet/spool's business, what is kept and when it is freed the outbox's.
//
// A half that has no spool, or one whose disk fails, goes on without it and says why.
package keeper

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/spool"
)

// Config sets a keeper.
type Config struct {
	Path   string // of the spool's file
	Size   int64  // of the file, in bytes; 0: no spool
	Origin fault.Origin
	Logger *slog.Logger
	// Boot and Now are the kernel's boot id, and the time since it booted in ns (CLOCK_BOOTTIME).
	Boot [16]byte
	Now  func() int64
}

// Keeper is the spool of one half, or what is there in its place. Its methods may be called from any
// goroutine, and none of them but Sync and Close waits for the disk.
type Keeper struct {
	cfg   Config
	spool *spool.Spool // nil: none
	why   string       // there is none
}

// Open returns a keeper, always, and the reports of earlier lives, in the order of their ids.
func Open(cfg Config) (*Keeper, []servicenet.Kept) {
	k := &Keeper{cfg: cfg}
	if cfg.Size == 0 {
		k.why = "none is configured"
		return k, nil
	}
	s, records, err := spool.Open(spool.Config{
		Path: cfg.Path, Size: cfg.Size, Origin: cfg.Origin, Boot: cfg.Boot, Logger: cfg.Logger, Now: cfg.Now,
	})
	if err != nil {
		cfg.Logger.Warn("undelivered reports will be lost when this half ends", "err", err)
		k.why = err.Error()
		return k, nil
	}
	k.spool = s
	return k, k.restore(records)
}

// restore reads the records. What cannot be read is freed: it never will be.
func (k *Keeper) restore(records []spool.Record) []servicenet.Kept {
	var out []servicenet.Kept
	for _, r := range records {
		m := new(lofamov1.Report)
		err := proto.Unmarshal(r.Payload, m)
		var report fault.Report
		if err == nil {
			report, err = servicenet.DecodeReport(m)
		}
		if err != nil || report.ID != r.ID {
			k.cfg.Logger.Warn("a kept report cannot be read", "id", r.ID.String(), "err", err)
			k.spool.Free([]fault.ReportID{r.ID})
			continue
		}
		out = append(out, servicenet.Kept{Report: report, Age: k.age(r)})
	}
	return out
}

// age is how long a record has lain there. Nothing tells how long the machine was off: after a boot it
// is the time since then at least.
func (k *Keeper) age(r spool.Record) time.Duration {
	age := k.cfg.Now()
	if r.Boot == k.cfg.Boot {
		age -= r.At
	}
	return time.Duration(max(age, 0))
}

// Keep appends reports that entered the log.
func (k *Keeper) Keep(reports []fault.Report) {
	if k.spool == nil {
		return
	}
	for _, r := range reports {
		b, err := proto.Marshal(servicenet.EncodeReport(r))
		if err != nil {
			k.cfg.Logger.Warn("a report is not kept", "id", r.ID.String(), "err", err)
			continue
		}
		k.spool.Append(spool.Record{ID: r.ID, Payload: b, Boot: k.cfg.Boot, At: k.cfg.Now()})
	}
}

// Forget frees reports that left the log.
func (k *Keeper) Forget(ids []fault.ReportID) {
	if k.spool != nil && len(ids) > 0 {
		k.spool.Free(ids)
	}
}

// Sync waits until all that was kept and forgotten before is on disk. It fails where there is no spool.
func (k *Keeper) Sync(ctx context.Context) error {
	if k.spool == nil {
		return fmt.Errorf("sync kept reports: no spool: %s", k.why)
	}
	return k.spool.Sync(ctx)
}

// Why says why reports are not kept; empty: they are.
func (k *Keeper) Why() string {
	if k.spool == nil {
		return k.why
	}
	return k.spool.Status().Err
}

// Path returns the file's name; empty: no spool is configured.
func (k *Keeper) Path() string {
	if k.cfg.Size == 0 {
		return ""
	}
	return k.cfg.Path
}

// Size returns the file's size in bytes.
func (k *Keeper) Size() int64 { return k.cfg.Size }

// Status returns the spool's counters; zeros without one.
func (k *Keeper) Status() spool.Status {
	if k.spool == nil {
		return spool.Status{Err: k.why}
	}
	return k.spool.Status()
}

// Close has everything written that is not yet, within a bound, and closes the file.
func (k *Keeper) Close() error {
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

// SinceBoot returns CLOCK_BOOTTIME in ns.
func SinceBoot() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0 // cannot fail for this clock
	}
	return ts.Nano()
}
