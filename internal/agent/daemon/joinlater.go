package daemon

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"reflect"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lofamo/lofamo/internal/config"
)

// laterPause is the first pause before a node that has started with a stored enrolment asks the supervisors again. It doubles up to
// laterPauseMost.
const laterPause, laterPauseMost = 2 * time.Second, 30 * time.Second

// ErrEnrolledAnew ends a daemon whose node got new certificates. The next daemon loads them.
var ErrEnrolledAnew = errors.New("the supervisors have enrolled this node again: exiting, so that a restart loads its new certificates")

// Later asks the supervisors about a node that has enrolled. If it has started with a stored enrolment, the cluster may have forgotten
// the node meanwhile.
type Later struct {
	mu    sync.Mutex // held while it asks
	j     *joiner
	cert  []byte // of the host half, in the enrolment with which the node has started
	asked bool   // a supervisor answered when the node started
	said  string // the last refusal
	// preset and periods are those of this daemon.
	preset  string
	periods *config.PeriodsOverride
	files   [2]string // that the halves have, from trusted
}

func (j *joiner) later(joined config.Joined, asked bool) *Later {
	cert, _ := os.ReadFile(j.file("host.pem"))
	return &Later{j: j, cert: cert, asked: asked, preset: joined.Preset, periods: joined.Periods, files: j.trusted()}
}

// refreshWithin bounds Refresh, which may wait while the other half's daemon asks. All supervisors share the rest of the time.
const refreshWithin = 2 * joinTry

// Refresh asks for the present settings, authorities and gossip keys of the cluster, and writes them for the halves that start next. New
// periods wait for the next start of the daemon and both halves, because the daemon judges its halves by its own periods. An error leaves
// the halves' files unchanged. A nil Later is that of a node that has not enrolled, and does nothing.
func (l *Later) Refresh(ctx context.Context) error {
	if l == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, refreshWithin)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	lock, err := l.j.lock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if _, err := l.j.stored(); err != nil { // again: the halves may have renewed their certificates
		return err
	}
	got, err := l.j.enrol(ctx)
	if err != nil {
		return err
	}
	joined := l.j.joined(got)
	if joined.Preset != l.preset || !reflect.DeepEqual(joined.Periods, l.periods) {
		l.j.log.Warn("the cluster's periods have changed: restart the whole agent to apply them (systemctl restart lofamo-agent)",
			"preset", joined.Preset)
	}
	joined.Preset, joined.Periods = l.preset, l.periods
	if _, err = l.j.complete(joined); err == nil {
		l.files = l.j.trusted()
	}
	return err
}

// trusted returns the text of the files that the halves read at their start.
func (j *joiner) trusted() [2]string {
	ca, _ := os.ReadFile(j.file("ca.pem"))
	keys, _ := os.ReadFile(j.file("gossip.key"))
	return [2]string{string(ca), string(keys)}
}

// Run runs the daemon, and asks until a supervisor answers, unless one has answered at the start. If the node was enrolled again, it
// stops the daemon in order and returns ErrEnrolledAnew. A nil Later only runs the daemon.
func (l *Later) Run(ctx context.Context, run func(context.Context) error) error {
	if l == nil || l.asked {
		return run(ctx)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var asking errgroup.Group
	asking.Go(func() error {
		if l.ask(ctx) {
			stop(ErrEnrolledAnew)
		}
		return nil
	})
	err := run(ctx)
	again := errors.Is(context.Cause(ctx), ErrEnrolledAnew)
	stop(nil)
	_ = asking.Wait()
	if again {
		return errors.Join(ErrEnrolledAnew, err)
	}
	return err
}

// ask reports whether the node was enrolled again. It returns when that is certain, or when ctx ends.
func (l *Later) ask(ctx context.Context) bool {
	for pause := laterPause; ; pause = min(2*pause, laterPauseMost) {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause/2 + rand.N(pause)):
		}
		if l.answered(ctx) {
			return l.renewed()
		}
	}
}

// renewed reports whether the node's certificates have changed since this daemon started: it or the daemon of the other half has stored
// new ones.
func (l *Later) renewed() bool {
	now, err := os.ReadFile(l.j.file("host.pem"))
	return err == nil && !bytes.Equal(now, l.cert)
}

// answered asks every supervisor once, unless the other half's daemon has an answer.
func (l *Later) answered(ctx context.Context) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	lock, err := l.j.lock(ctx)
	if err != nil {
		return false
	}
	defer func() { _ = lock.Close() }()
	if l.renewed() {
		return true
	}
	for _, to := range l.j.cfg.Join.Supervisors {
		_, err := l.j.ask(ctx, to)
		if err == nil {
			if l.j.trusted() != l.files {
				l.j.log.Warn("the cluster's authorities or gossip keys have changed: restart the halves to use the new ones " +
					"(lofamo-agent restart)")
			}
			return true
		}
		if final(err) && err.Error() != l.said {
			l.said = err.Error()
			l.j.log.Warn("supervisors refuse this node, which runs with its stored enrolment", "supervisor", to, "err", err)
		}
	}
	return false
}
