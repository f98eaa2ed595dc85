package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// StatusSocket is the name of the host half's socket in the state directory.
const StatusSocket = "host.status.sock"

// LiveSocket returns the name of the socket at which a half's recovery daemon reports whether its loops turn.
func LiveSocket(h fault.Half) string { return h.String() + ".live.sock" }

// answerWithin bounds a request; a host half answers within milliseconds.
const answerWithin = 3 * time.Second

// Status is the status of a node's host half.
type Status struct {
	Node  string `json:"node"`
	Coord string `json:"coord"`
	// Platform is shared-kernel or dpu; unknown, until the halves of a node with a window have heard each other.
	Platform string `json:"platform"`
	// Window is the host half's end of the window to the DNP half's kernel; absent: both halves have one kernel.
	Window *WindowStatus `json:"window,omitempty"`
	// Host and DNP are the halves, as the host half sees them.
	Host HalfStatus `json:"host"`
	DNP  HalfStatus `json:"dnp"`
	// ServiceNetwork is the network's state according to this half: NORMAL, SICK, FAILED or UNKNOWN.
	ServiceNetwork string `json:"service_network"`
	// SupervisorAnswers: a supervisor answers this half's reports on the service network. Gossip of other nodes does not count.
	// Absent: the half has an earlier version.
	SupervisorAnswers *bool `json:"supervisor_answers,omitempty"`
	// Interfaces are the service interfaces by their numbers.
	Interfaces []InterfaceStatus `json:"interfaces"`
	Delivery   DeliveryStatus    `json:"delivery"`
	// Migrations counts the changes of the primary path since the start by their reason, such as
	// "unanswered" or "interface-down"; reasons that never came are left out.
	Migrations map[string]uint64 `json:"migrations,omitempty"`
	Spool      SpoolStatus       `json:"spool"`
	// Health is the halves' health, by "host" and "dnp": recoveries and self-tests, as far as the host half knows
	// them.
	Health map[string]HealthStatus `json:"health,omitempty"`
	Copy   CopyStatus              `json:"copy"`
	// Broadcasts are the express broadcasts of the DNP half, by topic: "job", "manage", "mask", "flow", "master", "other".
	Broadcasts map[string]BroadcastStatus `json:"broadcasts,omitempty"`
	// Procedures is the fault management procedure at this node; absent: the DNP half takes no part in any.
	Procedures *ProcedureStatus `json:"procedures,omitempty"`
	// Master is set while a node in this node's part of the torus has no path of its own to the supervisors.
	Master *MasterStatus `json:"master,omitempty"`
	// Torus holds other counters of the DNP half since its start, modulo 2^32. Its keys, such as
	// "messages_routed/nearer", are the names of the metrics lofamo_agent_*_total with their label.
	Torus   map[string]uint64 `json:"torus,omitempty"`
	Damaged uint64            `json:"damaged"` // packets that came damaged
	Refused uint64            `json:"refused"` // messages refused
}

// HalfStatus is one half.
type HalfStatus struct {
	State string `json:"state"` // of the DNP half, from its watchdog: WAITING, ALIVE or STALE
	Epoch uint64 `json:"epoch"` // boot epoch; 0: never written
	PID   int    `json:"pid,omitempty"`
}

// WindowStatus is one end of the window between the halves of a node with two kernels. Counts are since the half's start.
type WindowStatus struct {
	Listen  string `json:"listen"`
	Peer    string `json:"peer"`
	State   string `json:"state"`   // alive, refused, silent or claimed
	Silence string `json:"silence"` // since the last frame

	Sessions       uint64 `json:"sessions"`
	FailedSessions uint64 `json:"failed_sessions"`
	Statements     uint64 `json:"statements"`    // of the other half's words
	Messages       uint64 `json:"messages"`      // for this half's mailbox
	MessagesLost   uint64 `json:"messages_lost"` // not sent: too long, or without a session
	Repeated       uint64 `json:"repeated"`
	Forged         uint64 `json:"forged"`
	OldSession     uint64 `json:"old_session"`
	Damaged        uint64 `json:"damaged"`
	Malformed      uint64 `json:"malformed"`
	SecondClaimant uint64 `json:"second_claimant"` // frames of a second process of the other half, and meetings with one of this half
	Refusals       uint64 `json:"refusals"`        // by the other kernel

	RefusedSettings []string `json:"refused_settings,omitempty"` // registers whose values the DNP half does not take from this half
}

// InterfaceStatus is one service interface.
type InterfaceStatus struct {
	Name   string `json:"name"`
	Listen string `json:"listen"`
}

// DeliveryStatus is the delivery status of the host half's reports. In JSON it is the API's own message.
type DeliveryStatus struct{ *lofamov1.DeliveryStatus }

// MarshalJSON implements json.Marshaler.
func (d DeliveryStatus) MarshalJSON() ([]byte, error) {
	return protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(d.DeliveryStatus)
}

// UnmarshalJSON implements json.Unmarshaler. It ignores fields of later versions.
func (d *DeliveryStatus) UnmarshalJSON(b []byte) error {
	d.DeliveryStatus = &lofamov1.DeliveryStatus{}
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, d.DeliveryStatus)
}

// HealthStatus is the health of a half. In JSON it is the API's own message.
type HealthStatus struct{ *lofamov1.HalfHealth }

// MarshalJSON implements json.Marshaler.
func (h HealthStatus) MarshalJSON() ([]byte, error) {
	return protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(h.HalfHealth)
}

// UnmarshalJSON implements json.Unmarshaler. It ignores fields of later versions.
func (h *HealthStatus) UnmarshalJSON(b []byte) error {
	h.HalfHealth = &lofamov1.HalfHealth{}
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, h.HalfHealth)
}

// MasterStatus is the node that represents a part of the torus (seed 003 §4.4.4).
type MasterStatus struct {
	Node   string `json:"node"`
	CutOff bool   `json:"cut_off"` // no node of that part reaches the supervisors
}

// BroadcastStatus counts express broadcasts of a topic since the DNP half started, modulo 2^32.
type BroadcastStatus struct {
	Raised    uint32 `json:"raised"`    // at this node
	Delivered uint32 `json:"delivered"` // here, of others
	Repeated  uint32 `json:"repeated"`  // sent to a neighbour again
	Dropped   uint32 `json:"dropped"`   // no room or budget, or given up
}

// ProcedureStatus is the fault management procedure (seed 003 §4.5) at this node. Counts are since the DNP half started, modulo 2^32.
type ProcedureStatus struct {
	State    string `json:"state"`     // of Figure 7: Normal while none is under way
	Wave     uint32 `json:"wave"`      // number of the last one in the torus; 0: none
	Clear    uint32 `json:"clear"`     // that ended with the torus empty
	NotClear uint32 `json:"not_clear"` // with messages in it, or nodes that had not answered
	Refused  uint32 `json:"refused"`   // procedures that this node wanted and did not begin
	HeldUp   uint32 `json:"held_up"`   // messages of this node that waited for the end of one
	Waiting  uint32 `json:"waiting"`   // of these, now
	Held     uint32 `json:"held"`      // messages that may wait, in this DNP half, while one is under way
}

// CopyStatus is the file from which a restarted host half would resume.
type CopyStatus struct {
	Path    string `json:"path"`
	Failing bool   `json:"failing"` // not usable: a restart would begin cold
	Cold    string `json:"cold"`    // why the half began cold; empty: it resumed from the copy
	Reports int    `json:"reports"` // held
}

// SpoolStatus is the file that keeps undelivered reports over a restart.
type SpoolStatus struct {
	Path     string `json:"path,omitempty"` // empty: none is configured
	Capacity int64  `json:"capacity_bytes"` // of the file
	Used     int64  `json:"used_bytes"`
	Records  int    `json:"records"` // reports kept
	Lost     uint64 `json:"lost"`    // reports that were not kept, since the start
	Error    string `json:"error"`   // why reports are not kept; empty: they are
}

// AskStatus asks the host half that serves a state directory.
func AskStatus(ctx context.Context, stateDir string) (Status, error) {
	path := filepath.Join(stateDir, StatusSocket)
	b, err := askHost(ctx, answerWithin, stateDir, http.MethodGet, "/status")
	if err != nil {
		return Status{}, fmt.Errorf("ask the host half at %s: %w", path, err)
	}
	var s Status
	if err := json.Unmarshal(b, &s); err != nil {
		return Status{}, fmt.Errorf("ask the host half at %s: its answer: %w", path, err)
	}
	return s, nil
}

// ErrNoDaemon is in the chain of AskDaemon's error when no recovery daemon looks after the half.
var ErrNoDaemon = errors.New("no recovery daemon runs")

// AskDaemon asks the recovery daemon of a half whether its loops turn; nil: they do.
func AskDaemon(ctx context.Context, stateDir string, h fault.Half) error {
	path := filepath.Join(stateDir, LiveSocket(h))
	_, err := askSocket(ctx, answerWithin, path, http.MethodGet, "/live")
	if errors.Is(err, errNobody) {
		err = fmt.Errorf("%w: %w", ErrNoDaemon, err)
	}
	if err != nil {
		return fmt.Errorf("ask the recovery daemon at %s: %w", path, err)
	}
	return nil
}

// askHost is askSocket for the host half.
func askHost(ctx context.Context, within time.Duration, stateDir, method, what string) ([]byte, error) {
	b, err := askSocket(ctx, within, filepath.Join(stateDir, StatusSocket), method, what)
	if errors.Is(err, errNobody) || errors.Is(err, errEnds) || errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
		err = fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	return b, err
}

// refuse writes the error response for a notice that was not committed. If err is nil, it writes nothing.
func refuse(w http.ResponseWriter, err error) {
	switch {
	case err == nil:
	case errors.Is(err, ErrNotRunning): // this half is ending
		http.Error(w, err.Error(), http.StatusGone)
	default:
		http.Error(w, err.Error(), http.StatusGatewayTimeout)
	}
}

// askSocket sends a request to a process of this node at its socket, and returns the answer.
func askSocket(ctx context.Context, within time.Duration, socket, method, what string) ([]byte, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://node"+what, nil)
	if err != nil {
		return nil, err
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return nil, explainSocket(err, time.Since(began))
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(b)))
		if resp.StatusCode == http.StatusGone {
			err = fmt.Errorf("%w: %w", errEnds, err)
		}
	}
	return b, err
}

// errNobody means that no process listens at a socket.
var errNobody = errors.New("no process listens")

// errEnds means that the process answered that it is ending.
var errEnds = errors.New("the process is ending")

// explainSocket returns in plain words why no answer came.
func explainSocket(err error, after time.Duration) error {
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && (dial.Op == "dial") && !errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", errNobody, dial.Err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within %s: it may be stopped", after.Round(100*time.Millisecond))
	}
	return err
}

// StatusHandler serves the result of get.
//
// announce reports a restart to the supervisors, and stop a stop of the node, for the recovery daemon.
func StatusHandler(get func() Status, announce func(context.Context, fault.RestartNotice) error,
	stop func(context.Context, fault.Stop) error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+stopPath, func(w http.ResponseWriter, r *http.Request) {
		s, err := fault.ParseStop(r.URL.Query().Get("notice"))
		if err != nil {
			http.Error(w, fmt.Sprintf("notice: given %.20q: want stop, shutdown, reboot, over or leave", r.URL.Query().Get("notice")),
				http.StatusBadRequest)
			return
		}
		refuse(w, stop(r.Context(), s))
	})
	mux.HandleFunc("POST "+announcePath, func(w http.ResponseWriter, r *http.Request) {
		n, err := parseNotice(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		refuse(w, announce(r.Context(), n))
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		b, err := json.Marshal(get())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(b) // the client went away
	})
	return mux
}
