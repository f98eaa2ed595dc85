package daemon

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
)

// laterPause is the first pause before a node that has started with a stored enrolment asks the supervisors again. It doubles up to
// laterPauseMost.
const laterPause, laterPauseMost = 2 * time.Second, 30 * time.Second

// ErrEnrolledAnew ends a daemon whose node got new certificates. The next daemon loads them.
var ErrEnrolledAnew = errors.New("the supervisors have enrolled this node again: exiting, so that a restart loads its new certificates")

// Later asks the supervisors about a node that has enrolled. If it has started with a stored enrolment, the cluster may have forgotten
// the node meanwhile.
type Later struct {
	j     *joiner
	cert  []byte // of the host half, in the enrolment with which the node has started
	asked bool   // a supervisor has answered when the node started
	said  string // the last refusal
}

func (j *joiner) later(asked bool) *Later {
	cert, _ := os.ReadFile(j.file("host.pem"))
	return &Later{j: j, cert: cert, asked: asked}
}

// Refresh asks for the present settings, authorities and gossip keys of the cluster, and writes them for the halves that start next. An
// error changes nothing. A nil Later is that of a node that has not enrolled, and does nothing.
func (l *Later) Refresh(ctx context.Context) error {
	if l == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, joinAsk)
	defer cancel()
	lock, err := l.j.lock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if _, err := l.j.stored(); err != nil { // the halves may have renewed their certificates
		return err
	}
	got, err := l.j.enrol(ctx)
	if err != nil {
		return err
	}
	_, err = l.j.complete(l.j.joined(got))
	return err
}

// Run runs the daemon, and asks until a supervisor answers, unless one has answered at the start. If the node was enrolled anew, it
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
	anew := errors.Is(context.Cause(ctx), ErrEnrolledAnew)
	stop(nil)
	_ = asking.Wait()
	if anew {
		return errors.Join(ErrEnrolledAnew, err)
	}
	return err
}

// ask reports whether the node was enrolled anew. It returns when that is certain, or when ctx ends.
func (l *Later) ask(ctx context.Context) bool {
	for pause := laterPause; ; pause = min(2*pause, laterPauseMost) {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause/2 + rand.N(pause)):
		}
		if l.answered(ctx) {
			return l.anew()
		}
	}
}

// anew reports whether the node's certificates have changed since this daemon started: it or the daemon of the other half has stored
// new ones.
func (l *Later) anew() bool {
	now, err := os.ReadFile(l.j.file("host.pem"))
	return err == nil && !bytes.Equal(now, l.cert)
}

// answered asks every supervisor once, unless the other half's daemon has an answer.
func (l *Later) answered(ctx context.Context) bool {
	lock, err := l.j.lock(ctx)
	if err != nil {
		return false
	}
	defer func() { _ = lock.Close() }()
	if l.anew() {
		return true
	}
	for _, to := range l.j.cfg.Join.Supervisors {
		_, err := l.j.ask(ctx, to)
		if err == nil {
			return true
		}
		if final(err) && err.Error() != l.said {
			l.said = err.Error()
			l.j.log.Warn("supervisors refuse this node, which runs with its stored enrolment", "supervisor", to, "err", err)
		}
	}
	return false
}
