package process

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/controller"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Limits of a call.
const (
	maxSuspects = executor.MaxSuspects
	maxReadings = 1000
)

// witness asks the management controllers of nodes. Its machine decides when; each look runs in a goroutine of its own, which
// owns the connection. Calls of supervisors read the machine's answers and wait for no controller.
type witness struct {
	nodes   map[fault.NodeID]*controllerPlace
	timeout time.Duration
	logger  *slog.Logger
	run     string
	signal  chan struct{} // something is due; holds one

	mu      sync.Mutex
	machine *controller.Machine
	logging time.Time // begin of the minute in which logged counts
	logged  int
}

// counts returns the number of controllers by finding, those without an answer under zero. A nil witness has none.
func (w *witness) counts() map[controller.Finding]int {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.machine.Counts()
}

// controllerPlace is a controller, with what its looks remember. At most one look at a time uses it.
type controllerPlace struct {
	Controller

	last  uint16              // IPMI: the newest record of the event log that a look has read; 0: none
	empty bool                // IPMI: the event log had no record; with last 0
	seen  map[uint64]struct{} // Redfish: the entries that the last look at the event log has read
}

// newWitness checks the files and starts nothing. It returns nil without controllers.
func newWitness(cfg ControllersConfig, now time.Time, logger *slog.Logger) (*witness, error) {
	if len(cfg.Nodes) == 0 {
		return nil, nil
	}
	cfg = cfg.filled()
	if err := cfg.checkFiles(); err != nil {
		return nil, err
	}
	m, err := controller.New(cfg.machine(), now, slices.Collect(maps.Keys(cfg.Nodes)))
	if err != nil {
		return nil, err
	}
	w := &witness{nodes: map[fault.NodeID]*controllerPlace{}, timeout: time.Duration(cfg.Timeout), logger: logger, machine: m,
		signal: make(chan struct{}, 1), run: rand.Text()}
	for id, n := range cfg.Nodes {
		w.nodes[id] = &controllerPlace{Controller: n}
	}
	return w, nil
}

// Run asks controllers until ctx ends. It does not wait for looks that ignore their context; these change nothing any more.
func (w *witness) Run(ctx context.Context) {
	for {
		w.mu.Lock()
		asks, wake := w.machine.Tick(time.Now())
		w.mu.Unlock()
		for _, a := range asks {
			go w.look(ctx, a)
		}
		t := time.NewTimer(time.Until(wake))
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-w.signal:
			t.Stop()
		case <-t.C:
		}
	}
}

func (w *witness) due() {
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// look makes one look, and logs a change for the worse.
func (w *witness) look(ctx context.Context, a controller.Ask) {
	answer := w.read(ctx, a)
	if ctx.Err() != nil { // the process ends: that says nothing about the controller
		return
	}
	now := time.Now()
	w.mu.Lock()
	was := w.machine.Reading(a.Node)
	w.machine.Ended(now, a.Node, answer)
	is := w.machine.Reading(a.Node)
	w.mu.Unlock()
	w.due()
	if is.Finding != was.Finding && !is.Finding.Plain() && w.mayLog(now) {
		w.logger.Warn("management controller does not state its node's power (evidence, not a verdict)", "node", a.Node,
			"finding", is.Finding.String(), "detail", is.Detail)
	}
}

// maxLogged bounds the lines that looks log in a minute.
const maxLogged = 10

// mayLog reports whether another line may be logged now.
func (w *witness) mayLog(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(w.logging) >= time.Minute {
		w.logging, w.logged = now, 0
	}
	w.logged++
	return w.logged <= maxLogged
}

// read makes one look. It bounds the time and the size of the answer, and a hostile controller affects no other answer.
func (w *witness) read(ctx context.Context, a controller.Ask) (answer controller.Answer) {
	defer func() {
		if p := recover(); p != nil {
			w.logger.Error("panic in the client of a management controller", "node", a.Node, "panic", p)
			answer = controller.Answer{Finding: controller.Wrong, Detail: "panic in the client"}
		}
		answer.Full = a.Full
	}()
	p := w.nodes[a.Node]
	ctx, cancel := context.WithTimeout(ctx, w.patience(p.Kind))
	defer cancel()
	password, err := passwordIn(p.PasswordFile)
	if err != nil {
		return controller.Answer{Finding: controller.Wrong, Detail: err.Error()}
	}
	if p.Kind == methodIPMI {
		answer, err = p.readIPMI(ctx, password, a.Full)
	} else {
		answer, err = p.readRedfish(ctx, password, a.Full)
	}
	if err != nil {
		return controller.Answer{Finding: silentOrWrong(ctx, err), Detail: plain(err)}
	}
	return answer
}

// maxIPMI bounds a look over IPMI. When a session is 30 s old, the library sends a keep-alive from its own goroutine. That is a data race
// with the end of the session, and may crash the process.
const maxIPMI = 25 * time.Second

// patience returns the time limit of a look at a controller of this kind.
func (w *witness) patience(kind string) time.Duration {
	if kind == methodIPMI {
		return min(w.timeout, maxIPMI)
	}
	return w.timeout
}

// silentOrWrong tells a controller that does not answer from one that answers badly.
func silentOrWrong(ctx context.Context, err error) controller.Finding {
	if localFault(err) {
		return controller.Wrong
	}
	var n net.Error
	var op *net.OpError
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.As(err, &n) && n.Timeout() || errors.As(err, &op) && (op.Op == "dial" || op.Op == "read") || unanswered(err) {
		return controller.Silent
	}
	return controller.Wrong
}

// localFault reports whether a look failed on this host: without a name service, descriptors or a route, nobody has asked the controller.
func localFault(err error) bool {
	var d *net.DNSError
	return errors.As(err, &d) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENETUNREACH)
}

// Controllers implements the service.
func (s *server) Controllers(ctx context.Context, req *lofamov1.ExecutorControllersRequest) (*lofamov1.ExecutorControllersResponse, error) {
	if req.GetCluster() != s.cluster {
		return nil, status.Errorf(codes.InvalidArgument, "cluster: given %q: want %q", req.GetCluster(), s.cluster)
	}
	if n := len(req.GetSuspects()); n > maxSuspects {
		return nil, status.Errorf(codes.InvalidArgument, "suspects: given %d: want at most %d", n, maxSuspects)
	}
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	if s.witness == nil {
		return &lofamov1.ExecutorControllersResponse{}, nil
	}
	return s.witness.answer(req, time.Now()), nil
}

func (w *witness) answer(req *lofamov1.ExecutorControllersRequest, now time.Time) *lofamov1.ExecutorControllersResponse {
	suspects := make([]fault.NodeID, 0, len(req.GetSuspects()))
	for _, id := range req.GetSuspects() {
		suspects = append(suspects, fault.NodeID(id))
	}
	after := req.GetAfter()
	if req.GetRun() != w.run {
		after = 0
	}
	w.mu.Lock()
	w.machine.Suspects(now, suspects)
	readings := w.machine.After(after, maxReadings)
	w.mu.Unlock()
	w.due()
	out := &lofamov1.ExecutorControllersResponse{Run: w.run, Configured: uint32(len(w.nodes))} //nolint:gosec // maxControllers
	age := func(at time.Time) uint64 {
		if at.IsZero() {
			return 0
		}
		return uint64(max(0, now.Sub(at).Milliseconds()))
	}
	for _, r := range readings {
		out.Readings = append(out.Readings, &lofamov1.ControllerReading{
			Node: string(r.Node), Finding: lofamov1.ControllerFinding(r.Finding), Detail: r.Detail, Log: r.Log, Sensors: r.Sensors,
			AgeMs: age(r.At), SinceMs: age(r.Since), Version: r.Version, Health: lofamov1.ControllerHealth(r.Health),
			HealthSinceMs: age(r.HealthSince), LastPlain: lofamov1.ControllerFinding(r.Last), LastPlainAgeMs: age(r.LastAt),
		})
	}
	return out
}

var errTooLong = fmt.Errorf("the answer is longer than %d bytes", maxLook)
