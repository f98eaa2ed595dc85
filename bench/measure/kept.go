package measure

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/storage"
)

// Keeping selects the state that a half keeps of its reports outside its process.
type Keeping struct {
	Spool bool // on disk, for the next boot
	Copy  bool // in mapped memory, for the next life
}

// Kept keeps as the agent does. It is for one goroutine.
type Kept struct {
	dir    string
	keeper *storage.ReportLog
	copy   *storage.CopyFile // nil: none
	last   servicenet.OutboxSnapshot
	err    error // the first store that failed, which would spoil the figures
}

// NewKept opens the selected stores, in a directory of their own; nil if there are none.
func NewKept(k Keeping, origin fault.Origin) (_ *Kept, err error) {
	if k == (Keeping{}) {
		return nil, nil //nolint:nilnil // nothing is kept
	}
	dir, err := os.MkdirTemp("", "lofamo-bench-kept-")
	if err != nil {
		return nil, err
	}
	out := &Kept{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, out.Close())
		}
	}()
	cfg := storage.ReportLogConfig{Path: filepath.Join(dir, "spool"), Origin: origin, Logger: slog.New(slog.DiscardHandler),
		Now: storage.SinceBoot}
	if cfg.Boot, err = storage.BootID(); err != nil {
		return nil, err
	}
	if k.Spool {
		cfg.Size = 1 << 20
	}
	if k.Copy {
		if out.copy, err = storage.OpenCopy(filepath.Join(dir, "copy"),
			storage.CopyIdentity{Node: origin.Node, Half: origin.Half, Boot: cfg.Boot}); err != nil {
			return nil, err
		}
		cfg.Copy = out.copy
	}
	out.keeper, _ = storage.OpenReportLog(cfg)
	if why := out.keeper.Why(); k.Spool && why != "" {
		return nil, errors.New("no spool: " + why)
	}
	return out, nil
}

// Keep stores the effects of a step, before anything is sent.
func (k *Kept) Keep(e servicenet.SenderEffects, at servicenet.OutboxSnapshot) {
	if k.copy != nil && at != k.last {
		k.last = at
		k.err = errors.Join(k.err, k.copy.StoreNumbers(storage.Numbers{OutboxSnapshot: at}))
	}
	k.keeper.Keep(e.Keep)
	k.keeper.Forget(e.Forget)
}

// Close closes and removes it. It fails if anything could not be kept.
func (k *Kept) Close() error {
	err := k.err
	if k.copy != nil {
		if s := k.copy.Stats(); s.Failed+s.NoRoom > 0 {
			err = errors.Join(err, errors.New("the copy missed stores"))
		}
		err = errors.Join(err, k.copy.Close())
	}
	if k.keeper != nil {
		err = errors.Join(err, k.keeper.Close())
	}
	return errors.Join(err, os.RemoveAll(k.dir))
}
