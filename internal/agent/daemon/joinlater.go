package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/lofamo/lofamo/internal/config"
)

// laterPause is the first pause before a node that has started with a stored enrolment asks the supervisors again. It doubles up to
// laterPauseMost.
const laterPause, laterPauseMost = 2 * time.Second, 30 * time.Second

// ErrEnrolledAnew ends a daemon whose node gets new certificates, or has them. The next daemon loads them. It also enrols the node if the
// halves of this one hold an address that the node has to prove, or answer the supervisors at another one.
var ErrEnrolledAnew = errors.New("this node has to enrol again, or has new certificates: exiting, so that the next daemon starts with them")

// Later asks the supervisors about a node that has enrolled. If it has started with a stored enrolment, the cluster may have forgotten
// the node meanwhile.
type Later struct {
	// Given reads the node's own settings again, from where Join's came; nil: they never change. File is their file; "": there is none.
	Given func() (config.Agent, error)
	File  string

	mu    sync.Mutex // held while it asks
	j     *joiner
	at    netip.Addr              // with which the halves run
	cert  []byte                  // of the host half, in the enrolment with which the node has started
	asked bool                    // a supervisor answered when the node started
	anew  bool                    // the next daemon enrols the node
	end   context.CancelCauseFunc // ends the daemon
	said  string                  // the last refusal
	// preset and periods are those of this daemon.
	preset  string
	periods *config.PeriodsOverride
	files   [2]string // that the halves have, from trusted
}

func (j *joiner) later(joined config.Joined, asked bool) *Later {
	cert, _ := os.ReadFile(j.file("host.pem"))
	return &Later{j: j, at: joined.Address, cert: cert, asked: asked, preset: joined.Preset, periods: joined.Periods, files: j.trusted()}
}

// refreshWithin bounds Refresh, which may wait while the other half's daemon asks. All supervisors share the rest of the time.
const refreshWithin = 2 * joinTry

// Own reads the node's own settings again, such as its checks, and writes them for the halves that start next. An error leaves the halves'
// file unchanged. The halves hold the ports and the address that join and service give, so these need a restart of the agent. A nil Later
// does nothing. It refuses file, if that is given, as a file that it does not read.
func (l *Later) Own(ctx context.Context, file string) error {
	if l == nil || l.Given == nil {
		return nil
	}
	if file != "" && file != l.File && file != l.j.file(joinAgent) {
		uses := "was started without --config: start it with --config " + file
		if l.File != "" {
			uses = "reads " + l.File
		}
		return fmt.Errorf("--config %s: the running daemon %s", file, uses)
	}
	next, err := l.Given()
	if err != nil {
		return err
	}
	if next, _, err = JoinName(next); err != nil {
		return err
	}
	if err := next.ValidateJoin(); err != nil {
		return err
	}
	return l.alone(ctx, rereadWithin, func(context.Context) error { return l.take(next) })
}

// take writes the node's configuration with new settings of its own. The caller is alone.
func (l *Later) take(next config.Agent) error {
	was := l.j.cfg
	if !reflect.DeepEqual(next.Join, was.Join) || !reflect.DeepEqual(next.Service, was.Service) || next.Node != was.Node {
		return errors.New("the configuration has changed in join, service or node: restart the whole agent, which announces its stop: " +
			"'systemctl restart lofamo-agent'")
	}
	have, err := l.j.stored()
	if err != nil {
		return err
	}
	l.j.cfg = next
	if err := l.write(have); err != nil {
		l.j.cfg = was
		return err
	}
	return nil
}

// Refresh asks for the present settings, authorities and gossip keys of the cluster, and writes them for the halves that start next. New
// periods wait for the next start of the daemon and both halves, because the daemon judges its halves by its own periods. An error leaves
// the halves' files unchanged. A nil Later is that of a node that has not enrolled, and does nothing.
func (l *Later) Refresh(ctx context.Context) error {
	if l == nil {
		return nil
	}
	return l.alone(ctx, refreshWithin, l.refresh)
}

// alone calls do while nobody else changes the node's files, and waits and works for a time at most.
func (l *Later) alone(ctx context.Context, within time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	lock, err := l.j.lock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	return do(ctx)
}

func (l *Later) refresh(ctx context.Context) error {
	if _, err := l.j.stored(); err != nil { // again: the halves may have renewed their certificates
		return err
	}
	got, err := l.j.enrol(ctx)
	if err != nil {
		return err
	}
	if got.Preset != l.preset || !reflect.DeepEqual(got.Periods, l.periods) {
		l.j.log.Warn("the cluster's periods have changed: restart the whole agent to apply them (systemctl restart lofamo-agent)",
			"preset", got.Preset)
	}
	return l.write(got)
}

// An address counts as lost after its absence for this long, by the monotonic clock: DHCP and network managers take an address away and
// give it back, for example at a restart or when a cable is plugged in again. A node that starts waits less, because it does no work yet.
const lostRunning, lostAtStart = 30 * time.Second, 10 * time.Second

// addressLook is the interval of looking at the machine's addresses.
const addressLook = time.Second

// lost reports whether an address remains absent for a time. It returns false once present returns true, or when ctx ends.
func lost(ctx context.Context, within time.Duration, present func() bool) bool {
	for end := time.Now().Add(within); !present(); {
		if !time.Now().Before(end) {
			return true
		}
		if !wait(ctx, addressLook) {
			return false
		}
	}
	return false
}

// wait reports whether a time passes before ctx ends.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Readdress returns nil when the machine has lost the address of its enrolment, the supervisors have accepted another one, and the node's
// configuration has it. It returns an error when ctx ends. A nil Later waits for that.
func (l *Later) Readdress(ctx context.Context) error {
	if l == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	for wait(ctx, addressLook) {
		if !lost(ctx, lostRunning, func() bool { return l.j.has(l.at) == nil }) {
			continue
		}
		changed, err := l.readdress(ctx)
		if changed {
			return nil
		}
		if err != nil {
			l.says("this machine has lost the address of its enrolment, and has no other one that the supervisors accept: trying again", err)
		}
	}
	return ctx.Err()
}

// readdress asks every supervisor once to accept another address, unless the machine has that of the stored enrolment.
func (l *Later) readdress(ctx context.Context) (changed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lock, err := l.j.lock(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = lock.Close() }()
	got, err := l.j.stored() // the other half's daemon may have been faster
	if errors.Is(err, errAddress) {
		var refused, failed error
		got, refused, failed = l.j.round(ctx, rand.IntN(len(l.j.cfg.Join.Supervisors)))
		err = errors.Join(refused, failed)
		if r, ok := errors.AsType[*refusal](refused); ok && r.code == codes.AlreadyExists || errors.Is(failed, syscall.EADDRINUSE) {
			l.end(ErrEnrolledAnew) // the halves answer for the node, or hold one of its addresses
		}
	}
	if err != nil || got.Address == l.at {
		return false, err
	}
	if err := l.write(got); err != nil {
		return false, err
	}
	l.j.log.Warn("this machine has another address: its halves start again with it", "was", l.at.String(), "is", got.Address.String())
	l.at = got.Address
	return true, nil
}

// write writes the configuration for the halves that start next. They keep the periods of this daemon.
func (l *Later) write(got joinedNode) error {
	joined := l.j.joined(got)
	joined.Preset, joined.Periods = l.preset, l.periods
	_, err := l.j.complete(joined)
	if err == nil {
		l.files = l.j.trusted()
	}
	return err
}

// says logs an error, unless it is the last one.
func (l *Later) says(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err.Error() != l.said {
		l.said = err.Error()
		l.j.log.Warn(what, "err", err)
	}
}

// trusted returns the text of the files that the halves read at their start.
func (j *joiner) trusted() [2]string {
	ca, _ := os.ReadFile(j.file("ca.pem"))
	keys, _ := os.ReadFile(j.file("gossip.key"))
	return [2]string{string(ca), string(keys)}
}

// Run runs the daemon, and asks until a supervisor answers, unless one has answered at the start. If the node was enrolled again, or the
// next daemon has to enrol it, Run stops the daemon in order and returns ErrEnrolledAnew. A nil Later only runs the daemon.
func (l *Later) Run(ctx context.Context, run func(context.Context) error) error {
	if l == nil {
		return run(ctx)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	l.end = stop
	var asking errgroup.Group
	asking.Go(func() error {
		if !l.asked && l.ask(ctx) {
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
	return l.anew || err == nil && !bytes.Equal(now, l.cert)
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
		if errors.Is(err, syscall.EADDRINUSE) { // the supervisors accept the node's evidence
			l.anew = true
			return true
		}
		if final(err) && err.Error() != l.said {
			l.said = err.Error()
			l.j.log.Warn("supervisors refuse this node, which runs with its stored enrolment", "supervisor", to, "err", err)
		}
	}
	return false
}
