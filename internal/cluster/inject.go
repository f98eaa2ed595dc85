package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
)

// controlTimeout bounds one request to a control socket.
const controlTimeout = 10 * time.Second

// runSocket is the control socket of a daemon that runs halves.
const runSocket = "run.sock"

// control asks one of a node's control sockets: HTTP with JSON over a Unix socket.
func control(ctx context.Context, n NodeInfo, socket, method, path string, in, out any) error {
	sock := filepath.Join(n.StateDir, socket)
	what := fmt.Sprintf("node %s: %s %s at %s", n.ID, method, path, sock)
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		body = bytes.NewReader(b)
	}
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://local"+path, body)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", sock)
	}}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s: %s: %s", what, resp.Status, strings.TrimSpace(string(b)))
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%s: answer: %w", what, err)
	}
	return nil
}

// HalfStatus is the status of one half from `lofamo-agent run`.
type HalfStatus struct {
	PID     int   `json:"pid"`
	Running bool  `json:"running"`
	SinceNS int64 `json:"since_ns"`
}

// NodeStatus is the status of both halves from `lofamo-agent run`.
type NodeStatus struct {
	Host HalfStatus `json:"host"`
	DNP  HalfStatus `json:"dnp"`
}

// Half returns the status of one half.
func (s NodeStatus) Half(h fault.Half) HalfStatus {
	if h == fault.HalfHost {
		return s.Host
	}
	return s.DNP
}

// errNoHalves is the error for a spare whose daemon runs and waits for a place.
var errNoHalves = errors.New("no half runs, because a spare without a place has none")

// Status asks a node's `lofamo-agent run` for its halves.
func (c *Cluster) Status(ctx context.Context, n NodeInfo) (NodeStatus, error) {
	if pid, _ := c.daemon(n); pid == 0 {
		return NodeStatus{}, fmt.Errorf("node %s: its lofamo-agent run (process %d) is not running: `lofamoctl up` starts a stopped cluster",
			n.ID, n.RunPID)
	}
	var s NodeStatus
	err := control(ctx, n, runSocket, http.MethodGet, "/status", nil, &s)
	if n.Coord == "" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED)) { // refused: the socket of an earlier daemon
		err = fmt.Errorf("node %s: %w", n.ID, errNoHalves)
	}
	return s, err
}

// openHalf takes hold of a running half. It insists on a child of the node's daemon, or on a process with the node's
// configuration file, which the daemon has adopted: a signal never goes anywhere else.
func (c *Cluster) openHalf(ctx context.Context, n NodeInfo, h fault.Half) (*process, error) {
	s, err := c.Status(ctx, n)
	if err != nil {
		return nil, err
	}
	st := s.Half(h)
	if !st.Running {
		return nil, fmt.Errorf("node %s: the %s half %w: `lofamoctl inject %s heal` starts it", n.ID, h, errNotRunning, n.ID)
	}
	p, err := openProcess(st.PID, 0)
	if err != nil {
		return nil, fmt.Errorf("node %s: the %s half (process %d): %w", n.ID, h, st.PID, err)
	}
	config := filepath.Join(c.nodeDir(n.ID), "agent.yaml")
	if s, ok := c.own(p.pid); ok && s.started == p.started && s.runs(agentProgram, h.String(), config) {
		return p, nil
	}
	if s, err := readStat(p.pid); err == nil && s.started == p.started && s.ppid == n.RunPID {
		return p, nil
	}
	p.close()
	return nil, fmt.Errorf("node %s: process %d is not a child of lofamo-agent run (process %d), and does not run the %s half with %s: "+
		"no signal sent", n.ID, st.PID, n.RunPID, h, config)
}

// Inject causes a fault and returns the monotonic time, in nanoseconds (see Monotonic), just before that. Link faults
// act at the node's own end: a cut both ways drops all frames that this end receives and sends. One way, it drops only
// sent frames, so that the neighbour detects silence and this node learns that by the handshake. Corruption flips bits
// of received frames, so that this node sees the link as SICK.
func (c *Cluster) Inject(ctx context.Context, node string, f Fault) (int64, error) {
	n, err := c.Node(node)
	if err != nil {
		return 0, err
	}
	if err := f.Check(c.dims); err != nil {
		return 0, err
	}
	switch f.Kind {
	case KillHost, KillDNP, KillNode:
		return c.signalHalves(ctx, n, f.halves(), unix.SIGKILL)
	case HangHost, HangDNP, HangNode:
		return c.signalHalves(ctx, n, f.halves(), unix.SIGSTOP)
	case SensorValue:
		t := monotonic()
		return t, c.setSensor(n, f.Sensor, f.Value)
	default:
		t := monotonic()
		return t, c.postFault(ctx, n, f, true)
	}
}

func (c *Cluster) signalHalves(ctx context.Context, n NodeInfo, halves []fault.Half, sig unix.Signal) (int64, error) {
	procs := make([]*process, 0, len(halves))
	defer func() {
		for _, p := range procs {
			p.close()
		}
	}()
	for _, h := range halves {
		p, err := c.openHalf(ctx, n, h)
		if err != nil {
			return 0, err
		}
		procs = append(procs, p)
	}
	t := monotonic()
	for i, p := range procs {
		if err := p.signal(sig); err != nil {
			return 0, fmt.Errorf("node %s: the %s half: %w", n.ID, halves[i], err)
		}
	}
	return t, nil
}

// linkFaults is the request to dnp.inject.sock for one link. A nil fault does not change; halves of earlier versions end it.
type linkFaults struct {
	BlockIn   *bool    `json:"block_in,omitempty"`
	BlockOut  *bool    `json:"block_out,omitempty"`
	CorruptIn *float64 `json:"corrupt_in,omitempty"`
}

type dnpInjection struct {
	Dir    string      `json:"dir,omitempty"`
	Faults *linkFaults `json:"mangle,omitempty"`
	Heal   bool        `json:"heal,omitempty"`
}

type hostInjection struct {
	BlockService bool `json:"block_service"`
	Interface    *int `json:"interface,omitempty"` // nil: all together, and gossip
}

// postFault sets (on) or clears a fault that lives inside a half.
func (c *Cluster) postFault(ctx context.Context, n NodeInfo, f Fault, on bool) error {
	if f.Kind == CutService {
		return control(ctx, n, "host.inject.sock", http.MethodPost, "/inject", hostInjection{BlockService: on}, nil)
	}
	if f.Kind == CutInterface {
		if have := c.info.interfaces(); f.Number >= have {
			return fmt.Errorf("fault %s: node %s has service interfaces 0 to %d: 'lofamoctl up --service-interfaces 2 --force-new' makes more", f,
				n.ID, have-1)
		}
		return control(ctx, n, "host.inject.sock", http.MethodPost, "/inject", hostInjection{BlockService: on, Interface: &f.Number}, nil)
	}
	m := &linkFaults{}
	switch f.Kind {
	case CutLink:
		in := on && !f.OneWay
		m.BlockOut, m.BlockIn = &on, &in
	case CorruptLink:
		rate := f.Rate
		if !on {
			rate = 0
		}
		m.CorruptIn = &rate
	default:
		return fmt.Errorf("fault %s: not one of a link", f.Kind)
	}
	return control(ctx, n, "dnp.inject.sock", http.MethodPost, "/inject", dnpInjection{Dir: f.Dir.String(), Faults: m}, nil)
}

// SocketCounters counts the datagrams that one service interface's socket of a node has passed and, while it was cut,
// dropped.
type SocketCounters struct {
	Sent     uint64 `json:"sent"`
	Received uint64 `json:"received"`
	Blocked  uint64 `json:"blocked"`
}

// Sockets asks a node's host half for the counters of its service interfaces, by their numbers.
func (c *Cluster) Sockets(ctx context.Context, node string) ([]SocketCounters, error) {
	n, err := c.Node(node)
	if err != nil {
		return nil, err
	}
	var out []SocketCounters
	err = control(ctx, n, "host.inject.sock", http.MethodGet, "/inject", nil, &out)
	return out, err
}

// Undo ends one fault: it starts a killed half, continues a stopped one, repairs a link or the service network, or
// resets a sensor.
func (c *Cluster) Undo(ctx context.Context, node string, f Fault) error {
	n, err := c.Node(node)
	if err != nil {
		return err
	}
	if err := f.Check(c.dims); err != nil {
		return err
	}
	switch f.Kind {
	case SensorValue:
		return c.resetSensor(n, f.Sensor)
	case CutService, CutInterface, CutLink, CorruptLink:
		return c.postFault(ctx, n, f, false)
	default:
		for _, h := range f.halves() {
			if err := c.revive(ctx, n, h); err != nil {
				return err
			}
		}
		return nil
	}
}

var errNotRunning = errors.New("is not running")

// reviveWait is the longest wait for a half to start again: for its daemon to notice that it has ended, for a requested
// start, and for its control socket.
const reviveWait = time.Minute

// revive makes a half run: it continues a stopped one and starts a dead one. Right after a kill, the daemon may still
// report the half as running.
func (c *Cluster) revive(ctx context.Context, n NodeInfo, h fault.Half) error {
	waiting, cancel := context.WithTimeout(ctx, reviveWait)
	defer cancel()
	started := false
	for {
		s, err := c.Status(ctx, n)
		if err != nil {
			return err
		}
		running := s.Half(h).Running
		switch {
		case running:
			err = c.carryOn(ctx, n, h) // it may end meanwhile
			if !errors.Is(err, errNotOurs) && !errors.Is(err, errNotRunning) && !errors.Is(err, unix.ESRCH) {
				return err
			}
		case !started:
			if err := control(ctx, n, runSocket, http.MethodPost, "/start", map[string]string{"half": h.String()}, nil); err != nil {
				return err
			}
			started = true
			continue
		}
		select {
		case <-waiting.Done():
			if !running {
				return fmt.Errorf("node %s: the %s half does not run %s after it was started", n.ID, h, reviveWait)
			}
			return fmt.Errorf("node %s: the daemon reports the %s half as running, but its process has ended", n.ID, h)
		case <-time.After(pollEvery):
		}
	}
}

// carryOn continues a half that may be stopped. It returns errNotOurs if the process has ended.
func (c *Cluster) carryOn(ctx context.Context, n NodeInfo, h fault.Half) error {
	p, err := c.openHalf(ctx, n, h)
	if err != nil {
		return err
	}
	defer p.close()
	if p.ended() {
		return errNotOurs
	}
	return p.signal(unix.SIGCONT)
}

// Heal ends all injected faults of a node: it starts dead halves, continues stopped ones, repairs links and the service
// network, and resets sensors. The fault map may show it a moment later.
func (c *Cluster) Heal(ctx context.Context, node string) error {
	n, err := c.Node(node)
	if err != nil {
		return err
	}
	errs := []error{c.resetSensor(n, "")}
	for _, h := range []fault.Half{fault.HalfDNP, fault.HalfHost} {
		err := c.revive(ctx, n, h)
		if errors.Is(err, errNoHalves) {
			return errors.Join(errs...)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	errs = []error{
		c.endInjections(ctx, n, fault.HalfDNP, "dnp.inject.sock", dnpInjection{Heal: true}),
		c.endInjections(ctx, n, fault.HalfHost, "host.inject.sock", hostInjection{}),
	}
	for k := range c.info.interfaces() {
		errs = append(errs, c.endInjections(ctx, n, fault.HalfHost, "host.inject.sock", hostInjection{Interface: &k}))
	}
	return errors.Join(errs...)
}

// HealAll heals every node that has halves.
func (c *Cluster) HealAll(ctx context.Context) error { return c.HealEach(ctx, c.WithHalves()) }

// HealEach heals nodes, some at a time.
func (c *Cluster) HealEach(ctx context.Context, nodes []NodeInfo) error {
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i, n := range nodes {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = c.Heal(ctx, string(n.ID))
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// endInjections ends the injected faults of a half that runs. A half that was just started takes a moment to open its socket.
// One that was just killed may have ended only now: then it is started again.
func (c *Cluster) endInjections(ctx context.Context, n NodeInfo, h fault.Half, socket string, in any) error {
	ctx, cancel := context.WithTimeout(ctx, reviveWait)
	defer cancel()
	for {
		err := control(ctx, n, socket, http.MethodPost, "/inject", in, nil)
		var network *net.OpError
		if err == nil || !errors.As(err, &network) && !errors.Is(err, io.EOF) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
		if err := c.revive(ctx, n, h); err != nil {
			return err
		}
	}
}
