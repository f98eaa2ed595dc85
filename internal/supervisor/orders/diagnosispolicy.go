package orders

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// PolicySubject is the requester of the supervisors' own diagnoses.
const PolicySubject = "policy"

// DiagnosisPolicy defines the supervisors' own diagnoses. The zero value requests none.
type DiagnosisPolicy struct {
	// Links requests diagnoses of SICK links. After is the minimum time in that state, MinInterval the minimum time
	// between two diagnoses of the same link.
	Links              bool
	After, MinInterval time.Duration
	// Drain has the whole torus drained and all its links tested instead, not oftener than MinInterval.
	Drain bool
}

// pauseBetween is between any two diagnoses of the policy: people want their turn, and the links their load.
const pauseBetween = 10 * time.Second

// Suspect is an end of a link that is SICK for a reason of its own.
type Suspect struct {
	Node  fault.NodeID
	Dir   grid.Direction
	Since time.Time
}

// autoDiagnosis applies a policy. It is pure, and not safe for concurrent use.
type autoDiagnosis struct {
	policy DiagnosisPolicy
	done   map[linkEnd]time.Time
	last   time.Time
	ahead  map[linkEnd]sight // suspects whose time was in the future at their first sight
}

// sight is the first sight of a suspect in this term.
type sight struct{ since, first time.Time }

type linkEnd struct {
	node fault.NodeID
	dir  grid.Direction
}

// newAutoDiagnosis returns an autoDiagnosis without past diagnoses.
func newAutoDiagnosis(p DiagnosisPolicy) *autoDiagnosis {
	return &autoDiagnosis{policy: p, done: map[linkEnd]time.Time{}}
}

// Resume counts an earlier leader's test of a link by the policy. left is the rest of MinInterval since then.
func (a *autoDiagnosis) Resume(now time.Time, r store.PolicyRun, left time.Duration) {
	d, err := grid.ParseDirection(r.Direction)
	if r.Procedure() || err != nil {
		return
	}
	at := now.Add(left - a.policy.MinInterval)
	for _, e := range [...]linkEnd{{fault.NodeID(r.Node), d}, {fault.NodeID(r.Peer), d.Opposite()}} {
		a.done[e] = fault.Later(a.done[e], at)
	}
}

// limitTimes returns the suspects without times in the future. Such a time comes from a former leader whose clock was ahead. The time of
// the first sight in this term replaces it.
func (a *autoDiagnosis) limitTimes(now time.Time, suspects []Suspect) []Suspect {
	ahead, out := map[linkEnd]sight{}, slices.Clone(suspects)
	for i := range out {
		s := &out[i]
		end := linkEnd{s.Node, s.Dir}
		at, ok := a.ahead[end]
		if !ok || !at.since.Equal(s.Since) {
			at = sight{s.Since, now}
		}
		if s.Since.After(at.first) {
			ahead[end], s.Since = at, at.first
		}
	}
	a.ahead = ahead
	return out
}

// Next returns the next diagnosis, for the link that has been suspect for longest. peer returns the other end of a
// link, where the link may be suspect too. ok is false if none is due.
func (a *autoDiagnosis) Next(now time.Time, suspects []Suspect, peer func(fault.NodeID, grid.Direction) (fault.NodeID,
	bool)) (DiagnosisRequest, bool) {
	suspects = a.limitTimes(now, suspects)
	for e, at := range a.done {
		if now.Sub(at) >= a.policy.MinInterval {
			delete(a.done, e)
		}
	}
	pause := pauseBetween
	if a.policy.Drain {
		pause = a.policy.MinInterval
	}
	if !a.policy.Links || !a.last.IsZero() && now.Sub(a.last) < pause {
		return DiagnosisRequest{}, false
	}
	var found *Suspect
	for i := range suspects {
		s := &suspects[i]
		if _, lately := a.done[linkEnd{s.Node, s.Dir}]; lately || now.Sub(s.Since) < a.policy.After {
			continue
		}
		if found == nil || s.Since.Before(found.Since) {
			found = s
		}
	}
	if found == nil {
		return DiagnosisRequest{}, false
	}
	a.last, a.done[linkEnd{found.Node, found.Dir}] = now, now
	if id, ok := peer(found.Node, found.Dir); ok {
		a.done[linkEnd{id, found.Dir.Opposite()}] = now
	}
	return DiagnosisRequest{Node: found.Node, Link: found.Dir, Rounds: autoRounds, Subject: PolicySubject}, true
}

// Not says that Next's diagnosis was not done because another one was running. It is due again after a pause,
// because the other one may take long.
func (a *autoDiagnosis) Not(now time.Time, req DiagnosisRequest, peer func(fault.NodeID, grid.Direction) (fault.NodeID, bool)) {
	delete(a.done, linkEnd{req.Node, req.Link})
	if id, ok := peer(req.Node, req.Link); ok {
		delete(a.done, linkEnd{id, req.Link.Opposite()})
	}
	a.last = now
	if a.policy.Drain {
		a.last = now.Add(pauseBetween - a.policy.MinInterval)
	}
}

// autoRounds are enough to see a loss of some per cent.
const autoRounds = 3

// lookEvery is the interval between checks of the map for suspects.
const lookEvery = 2 * time.Second

// Watch requests diagnoses by a policy until the context ends. suspects returns the present suspects of the fault
// map.
func (m *Diagnoses) Watch(ctx context.Context, p DiagnosisPolicy, suspects func(context.Context) ([]Suspect, error)) {
	if !p.Links {
		return
	}
	auto, resumed, warned := newAutoDiagnosis(p), false, false
	unread := func(err error) {
		if !warned && ctx.Err() == nil {
			m.cfg.Logger.Warn("diagnosis by policy: waiting for the store", "err", err)
		}
		warned = true
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			list, err := suspects(ctx)
			if err != nil {
				continue // it leads no more, or not yet
			}
			if !resumed {
				if err := m.resumePolicy(ctx, now, auto); err != nil {
					unread(err)
					continue // without the store it would forget its own diagnoses too
				}
				resumed, warned = true, false
			}
			req, ok := auto.Next(now, list, m.peer)
			if !ok {
				continue
			}
			if err := m.byPolicy(ctx, req, p); err != nil {
				var pause *PauseError
				if errors.Is(err, ErrNotRead) {
					unread(err)
				}
				if errors.Is(err, ErrBusy) || errors.Is(err, ErrNotRead) || errors.As(err, &pause) {
					auto.Not(now, req, m.peer)
					continue
				}
				m.cfg.Logger.Info("diagnosis by policy failed", "of", req.String(), "drain", p.Drain, "err", err)
			}
		}
	}
}

// resumePolicy counts the tests of links by the policy under earlier leaders.
func (m *Diagnoses) resumePolicy(ctx context.Context, now time.Time, auto *autoDiagnosis) error {
	runs, err := m.pastRuns(ctx)
	if err != nil {
		return err
	}
	for _, r := range runs {
		auto.Resume(now, r, m.left(r.Ended, auto.policy.MinInterval))
	}
	return nil
}

// pastRuns returns the policy's stored runs and those in the last reports: an earlier version may have stored only the reports. It fails
// with ErrNotRead.
func (m *Diagnoses) pastRuns(ctx context.Context) ([]store.PolicyRun, error) {
	runs, err := m.storedRuns(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotRead, err)
	}
	d, err := m.cfg.Reports.LastDiagnosis(ctx)
	if err = m.decodable(err); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotRead, err)
	}
	p, err := m.cfg.Reports.LastProcedure(ctx)
	if err = m.decodable(err); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotRead, err)
	}
	return slices.Concat(runs, ranByPolicy(d, nil), ranByPolicy(nil, p)), nil
}

// storedRuns returns the policy's stored runs; none if they cannot be decoded.
func (m *Diagnoses) storedRuns(ctx context.Context) ([]store.PolicyRun, error) {
	runs, err := m.cfg.Reports.PolicyRuns(ctx)
	return runs, m.decodable(err)
}

// decodable returns the error of a read, but nil for a value that cannot be decoded: it counts as none. The log names the first
// such value of this process.
func (m *Diagnoses) decodable(err error) error {
	if !errors.Is(err, store.ErrUndecodable) {
		return err
	}
	m.damaged.Do(func() {
		m.cfg.Logger.Warn("a stored record of earlier diagnoses cannot be decoded: it counts as none", "err", err)
	})
	return nil
}

// testedLinks returns the tests of links in a report.
func testedLinks(r *lofamov1.DiagnosisReport) []store.PolicyRun {
	var out []store.PolicyRun
	for _, l := range r.GetLinks() {
		out = append(out, store.PolicyRun{Node: l.GetNode(), Direction: l.GetDirection(), Peer: l.GetPeer(), Ended: endOf(r)})
	}
	return out
}

// ranByPolicy returns the runs in reports of the policy. A procedure counts as one run, although it tests all links.
func ranByPolicy(d *lofamov1.DiagnosisReport, p *lofamov1.ProcedureReport) []store.PolicyRun {
	switch {
	case p.GetSubject() == PolicySubject:
		return []store.PolicyRun{{Ended: endOf(p)}}
	case p == nil && d.GetSubject() == PolicySubject:
		return testedLinks(d)
	}
	return nil
}

// runsTime bounds the read of the stored runs before a report is stored. It is shorter than keepTime: the write needs the rest.
const runsTime = time.Second

// maxPolicyRuns bounds the stored runs of the policy. The oldest are forgotten.
const maxPolicyRuns = 256

// policyRuns returns the stored runs of the policy with further ones. A later run of the same link, or a later
// procedure, replaces the earlier one.
func (m *Diagnoses) policyRuns(ctx context.Context, ran []store.PolicyRun) (store.KV, error) {
	ctx, cancel := context.WithTimeout(ctx, runsTime)
	defer cancel()
	runs, err := m.storedRuns(ctx)
	if err != nil {
		return store.KV{}, err
	}
	for _, r := range ran {
		runs = slices.DeleteFunc(runs, func(old store.PolicyRun) bool { return old.Node == r.Node && old.Direction == r.Direction })
	}
	runs = append(runs, ran...)
	return store.PolicyRunsPut(runs[max(0, len(runs)-maxPolicyRuns):])
}

// ErrNotRead says that the store did not answer a read that must succeed before a diagnosis or procedure.
var ErrNotRead = errors.New("the store does not answer")

// byPolicy runs the diagnosis or procedure that a policy requests for a link. A procedure needs the policy's interval since the
// policy's last one. A procedure that an earlier leader ordered counts too, even if this leader completed it.
func (m *Diagnoses) byPolicy(ctx context.Context, req DiagnosisRequest, p DiagnosisPolicy) error {
	if p.Drain {
		if err := m.policyRested(ctx, p.MinInterval); err != nil {
			return err
		}
		_, err := m.Procedure(ctx, ProcedureRequest{
			Diagnose: true, DrainTimeout: DefaultDrain, Reason: req.String() + " is SICK", Subject: PolicySubject,
		}, nil)
		return err
	}
	_, err := m.Run(ctx, req, func(*lofamov1.DiagnosisProgress) error { return nil })
	return err
}

// policyRested refuses a procedure of the policy that comes too soon after the policy's last one.
func (m *Diagnoses) policyRested(ctx context.Context, pause time.Duration) error {
	runs, err := m.pastRuns(ctx)
	if err != nil {
		return err
	}
	for _, r := range runs {
		if !r.Procedure() {
			continue
		}
		if err := tooSoon(m.left(r.Ended, pause)); err != nil {
			return err
		}
	}
	return nil
}

// peer returns the node at the other end of a link.
func (m *Diagnoses) peer(id fault.NodeID, d grid.Direction) (fault.NodeID, bool) {
	topo := m.cfg.Names.Topology()
	n, ok := topo.Node(id)
	if !ok || n.Spare {
		return "", false
	}
	at, ok := topo.Dims.Neighbour(n.Coord, d)
	if !ok {
		return "", false
	}
	other, ok := topo.Place(at)
	return other.ID, ok
}
