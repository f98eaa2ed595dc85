package half

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/daemon/recovery"
	"github.com/lofamo/lofamo/internal/agent/local/status"
	"github.com/lofamo/lofamo/internal/config"
)

// Live says why what looks after a half does not live, or after both, where half is 0; nil: it does. That is the recovery daemon, whose
// loops go round; it is its business whether the half does. Where no daemon runs it is the half itself.
func Live(ctx context.Context, cfg config.Agent, half fault.Half) error {
	return EachHalf(half, func(h fault.Half) error {
		err := status.AskDaemon(ctx, cfg.StateDir, h)
		if errors.Is(err, status.ErrNoDaemon) {
			return Serves(ctx, cfg, h)
		}
		return err
	})
}

// Ready says why a half does not serve, or one of both, where half is 0; nil: they do.
func Ready(ctx context.Context, cfg config.Agent, half fault.Half) error {
	return EachHalf(half, func(h fault.Half) error { return Serves(ctx, cfg, h) })
}

// EachHalf calls do for one half, or for both if half is 0, and joins the errors.
func EachHalf(half fault.Half, do func(fault.Half) error) error {
	if half != 0 {
		return do(half)
	}
	return errors.Join(do(fault.HalfHost), do(fault.HalfDNP))
}

// servesWithin is how long a half may be silent at least until it is said that it does not serve. A kubelet asks every few seconds, and may end
// the container: what a busy machine keeps from running, or is being restarted, is not to be called dead by that.
const servesWithin = 2 * time.Second

// Serves watches a half's watchdog word until it is written, for as long as a half may be silent that does not hang, and servesWithin. It
// reads what the half's daemon and the other half read, and asks nobody.
func Serves(ctx context.Context, cfg config.Agent, h fault.Half) error {
	p, err := cfg.Timing()
	if err != nil {
		return InvalidConfig(err)
	}
	f, err := regfile.OpenReadOnly(filepath.Join(cfg.StateDir, RegisterFile))
	if err != nil {
		return fmt.Errorf("%s half: %w", h, err)
	}
	defer func() { _ = f.Close() }()
	before, err := f.Progress(h)
	if err != nil {
		return fmt.Errorf("%s half: %w", h, err)
	}
	within := max(recovery.HangBound(p.TRead, p.ReadMisses), servesWithin)
	t := time.NewTicker(p.TWrite)
	defer t.Stop()
	for end := time.Now().Add(within); ; {
		switch now, err := f.Progress(h); {
		case err != nil:
			return fmt.Errorf("%s half: %w", h, err)
		case now != before:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("%s half: does not serve: its watchdog word was not written for %s", h, within)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}
