package clienttest

import (
	"context"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Asked returns the received requests for lists, summaries, explanations, histories and watches, in order.
func (s *Server) Asked() []proto.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]proto.Message(nil), s.asked...)
}

// ExpirePages makes the next request for a further page fail as when the map is no longer kept.
func (s *Server) ExpirePages() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire = true
}

// ask records a request, and returns the configured error of all calls.
func (s *Server) ask(req proto.Message) error {
	s.mu.Lock()
	s.asked = append(s.asked, proto.Clone(req))
	err, refuse := s.refuse, s.refuseIf
	s.mu.Unlock()
	if err == nil && refuse != nil {
		return refuse(req)
	}
	return err
}

// page cuts a list. next is the value of continue; empty: the list is complete.
func page[T any](s *Server, all []T, limit uint32, from string) (out []T, next string, err error) {
	begin := 0
	if from != "" {
		s.mu.Lock()
		expired := s.expire
		s.expire = false
		s.mu.Unlock()
		if expired {
			return nil, "", status.Error(codes.OutOfRange, "the map is no longer kept")
		}
		if begin, err = strconv.Atoi(from); err != nil || begin > len(all) {
			return nil, "", status.Errorf(codes.InvalidArgument, "continue: given %q", from)
		}
	}
	out = all[begin:]
	if limit > 0 && int(limit) < len(out) {
		return out[:limit], strconv.Itoa(begin + int(limit)), nil
	}
	return out, "", nil
}

// ListGroups answers with the map's.
func (s *Server) ListGroups(_ context.Context, req *lofamov1.ListGroupsRequest) (*lofamov1.ListGroupsResponse, error) {
	return given(s, req, &s.m.Groups)
}

// GetSummary answers with the map's.
func (s *Server) GetSummary(_ context.Context, req *lofamov1.GetSummaryRequest) (*lofamov1.GetSummaryResponse, error) {
	return given(s, req, &s.m.Summary)
}

// Explain answers with the map's.
func (s *Server) Explain(_ context.Context, req *lofamov1.ExplainRequest) (*lofamov1.ExplainResponse, error) {
	return given(s, req, &s.m.Explanation)
}

// GetHistory answers with the map's.
func (s *Server) GetHistory(_ context.Context, req *lofamov1.GetHistoryRequest) (*lofamov1.GetHistoryResponse, error) {
	return given(s, req, &s.m.History)
}

func given[T proto.Message](s *Server, req proto.Message, answer *T) (T, error) {
	var none T
	if err := s.ask(req); err != nil {
		return none, err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return proto.CloneOf(*answer), nil
}
