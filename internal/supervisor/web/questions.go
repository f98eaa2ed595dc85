package web

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// gzipFrom is the minimum size of a compressed answer, in bytes.
const gzipFrom = 4 << 10

// write sends an answer, smaller where that is worth it.
func write(w http.ResponseWriter, r *http.Request, b []byte) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTime)) // not of a test's recorder
	if len(b) < gzipFrom || !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		_, _ = w.Write(b) // the browser may have disconnected
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	_, _ = z.Write(b)
	_ = z.Close()
}

// nodePage is the API's node, with decoded registers: the server knows the meaning of their bits, the page does
// not.
type nodePage struct {
	Node  json.RawMessage `json:"node"`
	Words []watchdog.Word `json:"words,omitempty"` // none: none were received since this leader took over
	// Machine says for people whether its kernels are dead, the last words of its kernel, and how its last boot ended.
	Machine []string `json:"machine,omitempty"`
}

func (s *Server) node(w http.ResponseWriter, r *http.Request, who visitor) {
	s.answer(w, r, who, func(ctx context.Context) ([]byte, error) {
		n, err := s.cfg.Faults.GetNode(ctx, &lofamov1.GetNodeRequest{Node: r.URL.Query().Get("node")})
		if err != nil {
			return nil, err
		}
		page := nodePage{}
		if page.Node, err = encoding.Marshal(n); err != nil {
			return nil, err
		}
		if reg := n.GetRegisters(); reg != nil {
			page.Words = watchdog.ReadNode(reg.GetDnpWatchdog(), reg.GetHostWatchdog(), reg.GetRemoteFaultDescriptor())
		}
		page.Machine = servicenet.NodeNotes(n)
		return json.Marshal(page)
	})
}

func (s *Server) explain(w http.ResponseWriter, r *http.Request, who visitor) {
	q := r.URL.Query()
	ask(s, w, r, who, func(ctx context.Context) (*lofamov1.ExplainResponse, error) {
		return s.cfg.Faults.Explain(ctx, &lofamov1.ExplainRequest{Node: q.Get("node"), Component: q.Get("component"), Group: q.Get("group")})
	})
}

// groups returns the group faults at the requested revision or later: no later event would fill the gaps of an
// older answer.
func (s *Server) groups(w http.ResponseWriter, r *http.Request, who visitor) {
	after, err := number(r, "after", 1<<62)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	s.answer(w, r, who, func(ctx context.Context) ([]byte, error) {
		return s.allGroups.bytes(ctx, after, func(ctx context.Context) (uint64, []byte, error) {
			resp, err := s.cfg.Faults.ListGroups(ctx, &lofamov1.ListGroupsRequest{})
			if err != nil {
				return 0, nil, err
			}
			b, err := encoding.Marshal(resp)
			return resp.GetRevision(), b, err
		})
	})
}

func (s *Server) responses(w http.ResponseWriter, r *http.Request, who visitor) {
	ask(s, w, r, who, func(ctx context.Context) (*lofamov1.ListResponsesResponse, error) {
		return s.cfg.Responses.ListResponses(ctx, &lofamov1.ListResponsesRequest{All: r.URL.Query().Get("all") == "1",
			Node: r.URL.Query().Get("node")})
	})
}

// incidents returns incidents, the newest first: those that are closed too.
func (s *Server) incidents(w http.ResponseWriter, r *http.Request, who visitor) {
	limit, err := number(r, "limit", maxEvents)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	q := r.URL.Query()
	ask(s, w, r, who, func(ctx context.Context) (*lofamov1.ListIncidentsResponse, error) {
		return s.cfg.Faults.ListIncidents(ctx, &lofamov1.ListIncidentsRequest{Node: q.Get("node"), Limit: uint32(limit), Continue: q.Get("more")})
	})
}

// acknowledge notes that the user deals with an incident.
func (s *Server) acknowledge(w http.ResponseWriter, r *http.Request, who visitor) {
	var in struct {
		Note string `json:"note"`
	}
	if err := body(w, r, &in); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	ask(s, w, r, who, func(ctx context.Context) (*lofamov1.AcknowledgeIncidentResponse, error) {
		return s.cfg.Faults.AcknowledgeIncident(ctx, &lofamov1.AcknowledgeIncidentRequest{Id: r.PathValue("id"), Note: in.Note})
	})
}

// reason is a user's comment on an approval or a denial.
type reason struct {
	Reason string `json:"reason"`
}

func (s *Server) approve(w http.ResponseWriter, r *http.Request, who visitor) {
	var in reason
	if err := body(w, r, &in); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	ask(s, w, r, who, func(ctx context.Context) (*lofamov1.ApproveResponseResponse, error) {
		return s.cfg.Responses.ApproveResponse(ctx, &lofamov1.ApproveResponseRequest{Id: r.PathValue("id"), Reason: in.Reason})
	})
}

func (s *Server) deny(w http.ResponseWriter, r *http.Request, who visitor) {
	var in reason
	if err := body(w, r, &in); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	ask(s, w, r, who, func(ctx context.Context) (*lofamov1.DenyResponseResponse, error) {
		return s.cfg.Responses.DenyResponse(ctx, &lofamov1.DenyResponseRequest{Id: r.PathValue("id"), Reason: in.Reason})
	})
}

// number reads a parameter that may be missing.
func number(r *http.Request, name string, most uint64) (uint64, error) {
	given := r.URL.Query().Get(name)
	if given == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(given, 10, 64)
	if err != nil || n > most {
		return 0, fmt.Errorf("%s: given %.20q: want 0 to %d", name, given, most)
	}
	return n, nil
}

// pageOf are events in few bytes.
type pageOf struct {
	Events   []change `json:"events"`
	Revision uint64   `json:"revision"`
	// More requests the next events; empty: there are none.
	More string `json:"more,omitempty"`
	// Oldest is the revision of the oldest retained event; 1: none was lost.
	Oldest uint64 `json:"oldest,omitempty"`
	// TimeIn and From: of a history.
	TimeIn []timeIn `json:"timeIn,omitempty"`
	From   int64    `json:"from,omitempty"` // since when events are kept, in milliseconds since 1970
}

type timeIn struct {
	State string `json:"state"`
	Ms    int64  `json:"ms"`
	Times uint32 `json:"times"`
}

// list answers with events.
func (s *Server) list(w http.ResponseWriter, r *http.Request, who visitor, most uint64,
	call func(ctx context.Context, limit uint32) (*pageOf, error)) {
	limit, err := number(r, "limit", most)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	s.answer(w, r, who, func(ctx context.Context) ([]byte, error) {
		page, err := call(ctx, uint32(limit))
		if err != nil {
			return nil, err
		}
		return json.Marshal(page)
	})
}

// maxEvents is the most of one answer, as in the API.
const maxEvents = 10_000

func (s *Server) events(w http.ResponseWriter, r *http.Request, who visitor) {
	after, err := number(r, "after", 1<<62)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	s.list(w, r, who, maxEvents, func(ctx context.Context, limit uint32) (*pageOf, error) {
		resp, err := s.cfg.Faults.ListEvents(ctx, &lofamov1.ListEventsRequest{AfterRevision: after, Limit: limit,
			Continue: r.URL.Query().Get("more")})
		if err != nil {
			return nil, err
		}
		return &pageOf{Events: changesOf(resp.GetEvents()), Revision: resp.GetRevision(), More: resp.GetContinue(),
			Oldest: resp.GetOldestRevision()}, nil
	})
}

func (s *Server) history(w http.ResponseWriter, r *http.Request, who visitor) {
	q := r.URL.Query()
	since, err := number(r, "since", 1<<53)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	s.list(w, r, who, maxEvents, func(ctx context.Context, limit uint32) (*pageOf, error) {
		req := &lofamov1.GetHistoryRequest{Node: q.Get("node"), Component: q.Get("component"), Group: q.Get("group"), Limit: limit}
		if since > 0 {
			req.Since = timestamppb.New(time.UnixMilli(int64(since)))
		}
		resp, err := s.cfg.Faults.GetHistory(ctx, req)
		if err != nil {
			return nil, err
		}
		page := &pageOf{Events: changesOf(resp.GetEvents()), Revision: resp.GetRevision()}
		if resp.GetFrom() != nil {
			page.From = resp.GetFrom().AsTime().UnixMilli()
		}
		for _, t := range resp.GetTimeIn() {
			page.TimeIn = append(page.TimeIn, timeIn{t.GetState().String(), t.GetTime().AsDuration().Milliseconds(), t.GetTimes()})
		}
		return page, nil
	})
}
