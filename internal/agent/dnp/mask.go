package dnp

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
	"syscall"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half"
)

// MaskSock is the socket in the state directory at which the DNP half reports its node's channel mask, and accepts the
// node's own mask. Only the owner and root have access.
const MaskSock = "dnp.mask.sock"

const (
	// maskKept bounds the wait for the disk, and maskAsk the wait for the half.
	maskKept = 5 * time.Second
	maskAsk  = 8 * time.Second
	// maxMaskReason bounds a reason, in bytes.
	maxMaskReason = 200
)

// MaskStatus is a node's channel mask (seed 003 §5.2.3.1, §6.1). Names of directions stand for masked channels.
type MaskStatus struct {
	Own        []string `json:"own"`        // masked by a person at the node: this command
	Diagnosed  []string `json:"diagnosed"`  // masked by its diagnosis (procedure.maskDead)
	Configured []string `json:"configured"` // masked by its configuration (maskedLinks)
	Ordered    []string `json:"ordered"`    // masked by the supervisors' order
	Number     uint64   `json:"number"`     // of that order; 0: there is none
	InForce    []string `json:"in_force"`   // in force at this end
	Neighbours []string `json:"neighbours"` // masked by the neighbours, at their ends
	Unused     []string `json:"unused"`     // links without messages because of either end
	Links      []string `json:"links"`      // links that the node has
	Lost       bool     `json:"lost"`       // the stored state was unreadable, and no order has arrived since
}

// MaskRequest changes the mask that persons at the node have set.
type MaskRequest struct {
	Mask   []string `json:"mask"`   // directions to mask
	Unmask []string `json:"unmask"` // directions not to mask any more
	Reason string   `json:"reason"` // for the log; required to mask
	Force  bool     `json:"force"`  // also the last usable link
}

// keptMask is the known state of the disk.
type keptMask struct {
	state   chanmask.State
	err     error
	again   bool          // a person repeated the request after err: the state is being stored again
	changed chan struct{} // closed when there is something newer
}

// lacks reports whether the mask of a person at the node is not yet on disk. A supervisors' order that changes only the
// number does not reach the disk by itself (dnpcore, configuredMask).
func (k *keptMask) lacks(want chanmask.State) bool { return k.state.Held != want.Held || k.err != nil }

// noteKept notes whether a state was stored.
func (d *dnpHalf) noteKept(state chanmask.State, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kept.changed != nil {
		close(d.kept.changed)
	}
	d.kept = keptMask{state: state, err: err, changed: make(chan struct{})}
}

// awaitKept waits until a state is on disk.
func (d *dnpHalf) awaitKept(ctx context.Context, want chanmask.State) error {
	ctx, cancel := context.WithTimeout(ctx, maskKept)
	defer cancel()
	for {
		d.mu.Lock()
		if d.kept.changed == nil {
			d.kept.changed = make(chan struct{})
		}
		kept := d.kept
		d.mu.Unlock()
		has := !kept.again && kept.state.Held == want.Held && kept.state.Number >= want.Number // also satisfied by a newer order
		switch {
		case has && kept.err != nil:
			return fmt.Errorf("it is in force, and not kept: a restart undoes it: %w", kept.err)
		case has:
			return nil
		}
		select {
		case <-kept.changed:
		case <-ctx.Done():
			return errors.New("it is in force, and not on disk yet: a restart may undo it")
		}
	}
}

// serveMask serves MaskSock. Without it the half still does all its work, but answers no requests about the mask.
func (d *dnpHalf) serveMask(ctx context.Context) {
	if err := half.ServeUnix(ctx, d.StatePath(MaskSock), d.maskHandler(ctx)); err != nil {
		d.Log.Error("requests for the channel mask fail", "err", err)
	}
}

// maskHandler serves MaskSock: GET /mask, and POST /mask with a MaskRequest. Both answer with a MaskStatus.
func (d *dnpHalf) maskHandler(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /mask", func(w http.ResponseWriter, _ *http.Request) {
		d.mu.Lock()
		v := d.core.Masks()
		d.mu.Unlock()
		half.WriteJSON(w, maskStatus(v))
	})
	mux.Handle("/mask", half.Post(func(in MaskRequest) (any, error) {
		d.mu.Lock()
		v := d.core.Masks()
		next, err := in.apply(v)
		if err == nil && next != chanmask.All&^v.State.Held {
			d.handle(time.Now(), dnpcore.OwnMask{Mask: next})
			v = d.core.Masks()
			d.Log.Info("the node's own word on its channel mask", "mask", next, "reason", in.Reason, "forced", in.Force)
		}
		wait := err == nil && d.kept.lacks(v.State)
		if wait && d.kept.err != nil {
			d.kept.again = true
			d.masks.put(v.State)
		}
		d.mu.Unlock()
		if err != nil {
			return nil, err
		}
		if wait {
			if err := d.awaitKept(ctx, v.State); err != nil {
				return nil, err
			}
		}
		return maskStatus(v), nil
	}))
	return mux
}

// apply returns the node's own mask after the request. Unless forced, it refuses a mask that leaves no channel: only
// the service network would reach such a node.
func (in MaskRequest) apply(v dnpcore.MaskView) (chanmask.Mask, error) {
	own := chanmask.All &^ v.State.Held
	if len(in.Mask)+len(in.Unmask) == 0 {
		return own, errors.New("mask: given no directions: want at least one to mask or to unmask")
	}
	if n := len(in.Reason); n > maxMaskReason || len(in.Mask) > 0 && strings.TrimSpace(in.Reason) == "" {
		return own, fmt.Errorf("reason: given %d bytes: want 1 to %d that say why", n, maxMaskReason)
	}
	seen := make(map[grid.Direction]bool)
	for i, name := range append(append([]string(nil), in.Mask...), in.Unmask...) {
		d, err := grid.ParseDirection(name)
		if err != nil {
			return own, err
		}
		if !v.Links.Usable(d) {
			return own, fmt.Errorf("direction %s: this node has no such link", d)
		}
		if seen[d] {
			return own, fmt.Errorf("direction %s: given twice: want each once", d)
		}
		seen[d] = true
		own = own.With(d, i >= len(in.Mask))
	}
	left := own & v.State.Own & v.State.Ordered & v.Configured & v.Peers & v.Links
	if before := v.State.InForce() & v.Configured & v.Peers & v.Links; left == 0 && before != 0 && !in.Force {
		return own, errors.New("mask: no link of this node would carry messages, and one does now: nothing was changed (force masks " +
			"it all the same)")
	}
	return own, nil
}

func maskStatus(v dnpcore.MaskView) MaskStatus {
	names := func(m chanmask.Mask) []string {
		out := []string{}
		for _, d := range grid.Directions() {
			if v.Links.Usable(d) && !m.Usable(d) {
				out = append(out, d.String())
			}
		}
		return out
	}
	return MaskStatus{
		Own: names(chanmask.All &^ v.State.Held), Diagnosed: names(v.State.Own), Configured: names(v.Configured), Ordered: names(v.State.Ordered),
		Number: v.State.Number, InForce: names(v.InForce),
		Neighbours: names(v.Peers), Unused: names(v.InForce & v.State.InForce() & v.Configured & v.Peers), Links: linkNames(v.Links),
		Lost: v.Lost,
	}
}

// AskMask asks the DNP half that serves a state directory for the channel mask of its node. With a request it first
// changes the node's own mask.
func AskMask(ctx context.Context, stateDir string, in *MaskRequest) (MaskStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, maskAsk)
	defer cancel()
	path := filepath.Join(stateDir, MaskSock)
	method, body := http.MethodGet, []byte(nil)
	if in != nil {
		method = http.MethodPost
		var err error
		if body, err = json.Marshal(in); err != nil {
			return MaskStatus{}, fmt.Errorf("ask the DNP half: %w", err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://node/mask", bytes.NewReader(body))
	if err != nil {
		return MaskStatus{}, fmt.Errorf("ask the DNP half: %w", err)
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", path)
	}}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return MaskStatus{}, fmt.Errorf("the DNP half is not running, or is of an earlier version: no process listens at %s", path)
	case errors.Is(err, fs.ErrPermission):
		return MaskStatus{}, fmt.Errorf("ask the DNP half at %s: it is for root and for the user who runs the halves", path)
	case err != nil:
		return MaskStatus{}, fmt.Errorf("ask the DNP half at %s: %w", path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return MaskStatus{}, fmt.Errorf("ask the DNP half at %s: its answer: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return MaskStatus{}, errors.New(strings.TrimSpace(string(b)))
	}
	var out MaskStatus
	if err := json.Unmarshal(b, &out); err != nil {
		return MaskStatus{}, fmt.Errorf("ask the DNP half at %s: its answer: %w", path, err)
	}
	return out, nil
}

func linkNames(m chanmask.Mask) []string {
	out := []string{}
	for _, d := range grid.Directions() {
		if m.Usable(d) {
			out = append(out, d.String())
		}
	}
	return out
}
