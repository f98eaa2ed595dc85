package half

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/config"
)

// Live returns why the process that looks after a half does not live, or after both halves if half is 0; nil: it
// lives. That is the recovery daemon, whose loops must turn: whether the half lives is the daemon's concern. Without a
// daemon Live checks the half itself.
func Live(ctx context.Context, cfg config.Agent, half fault.Half) error {
	return EachHalf(half, func(h fault.Half) error {
		err := local.AskDaemon(ctx, cfg.StateDir, h)
		if errors.Is(err, local.ErrNoDaemon) {
			return Serves(ctx, cfg, h)
		}
		return err
	})
}

// Ready returns why a half does not serve, or one of both halves if half is 0; nil: they serve.
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

// servesWithin is the shortest silence after which a half counts as not serving. A kubelet probes every few seconds
// and may kill the container. It must not do so because a busy machine delays the half, or because the half is
// restarting.
const servesWithin = 2 * time.Second

// Serves waits until a half writes its watchdog word. It waits for the longest silence of a half that does not hang,
// plus servesWithin. It reads the same word as the half's daemon and the other half, and sends no request.
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
	within := max(halfcore.HangBound(p.TRead, p.ReadMisses), servesWithin)
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
