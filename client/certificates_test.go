package client_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// TestListCertificatesHasIssuersOfAllSupervisors: during a change of keys, supervisors may trust different issuers.
func TestListCertificatesHasIssuersOfAllSupervisors(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	issuer := func(serial string) *lofamov1.Certificate {
		return &lofamov1.Certificate{Identity: "lofamo://test/issuer", Serial: serial, NotAfter: timestamppb.New(time.Unix(1e9, 0))}
	}
	m := clienttest.NewMap()
	a, b := clienttest.Serve(t, dir, m), clienttest.Serve(t, dir, m)
	a.Certificates.List = &lofamov1.ListCertificatesResponse{NextVersion: 1, Issuers: []*lofamov1.Certificate{issuer("1")}}
	b.Certificates.List = &lofamov1.ListCertificatesResponse{NextVersion: 1, Issuers: []*lofamov1.Certificate{issuer("1"), issuer("2")}}
	resp, err := dial(t, dir, a.Address, b.Address).ListCertificates(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.GetIssuers(); len(got) != 2 || got[0].GetSerial() != "1" || got[1].GetSerial() != "2" {
		t.Errorf("issuers %v: want 1 and 2", got)
	}
}

// TestListCertificatesHasLatestClock: a revocation by the latest clock refuses the certificates that any supervisor has issued. Supervisors
// of earlier versions do not tell their clock.
func TestListCertificatesHasLatestClock(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	a, b := clienttest.Serve(t, dir, m), clienttest.Serve(t, dir, m)
	c := dial(t, dir, a.Address, b.Address)
	a.Certificates.List, b.Certificates.List = &lofamov1.ListCertificatesResponse{}, &lofamov1.ListCertificatesResponse{}
	if resp, err := c.ListCertificates(bounded(t)); err != nil || resp.GetClock() != nil {
		t.Errorf("%v, %v: want an answer without a clock", resp, err)
	}
	a.Certificates.List = &lofamov1.ListCertificatesResponse{Clock: timestamppb.New(time.Now().Add(time.Hour))}
	b.Certificates.List = &lofamov1.ListCertificatesResponse{Clock: timestamppb.New(time.Now().Add(-time.Hour))}
	resp, err := c.ListCertificates(bounded(t))
	if ahead := time.Until(resp.GetClock().AsTime()); err != nil || ahead < 59*time.Minute || ahead > time.Hour {
		t.Errorf("a clock that is %s ahead, %v: want an hour", ahead, err)
	}
}

// TestListCertificatesIsBoundedAtEachSupervisor: TryTimeout bounds the read at each supervisor, also at one that answers other calls.
func TestListCertificatesIsBoundedAtEachSupervisor(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	a, b := clienttest.Serve(t, dir, m), clienttest.Serve(t, dir, m)
	const try = 5 * time.Second
	a.Certificates.Hang = true
	b.Certificates.List = &lofamov1.ListCertificatesResponse{NextVersion: 7}
	c := dialWithin(t, try, dir, a.Address, b.Address)
	begun := time.Now()
	if resp, err := c.ListCertificates(bounded(t)); err != nil || resp.GetNextVersion() != 7 {
		t.Errorf("%v, %v: want the answer of the second supervisor", resp, err)
	}
	if took := time.Since(begun); took < try {
		t.Errorf("the first supervisor was given up after %s: want %s", took, try)
	}
}

// TestRefusedDenyListIsNotOfferedToOthers: the client asks another supervisor for a change only after UNAVAILABLE.
func TestRefusedDenyListIsNotOfferedToOthers(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	a, b := clienttest.Serve(t, dir, m), clienttest.Serve(t, dir, m)
	a.Certificates.Err = status.Error(codes.Aborted, "another list was stored meanwhile")
	_, err := dial(t, dir, a.Address, b.Address).PutDenyList(bounded(t), &lofamov1.SignedDenyList{})
	if status.Code(err) != codes.Aborted || b.Certificates.Put != 0 {
		t.Errorf("%v, %d calls at the second supervisor: want the first one's refusal and no other call", err, b.Certificates.Put)
	}
}

// TestConcurrentAnswerHidesNoSupervisor: while a call waits at one supervisor, another call learns that a second one answers. The first
// call then still asks the second one.
func TestConcurrentAnswerHidesNoSupervisor(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	a, b := clienttest.Serve(t, dir, m), clienttest.Serve(t, dir, m)
	unread, err := status.New(codes.Unavailable, "no quorum").WithDetails(&errdetails.ErrorInfo{Reason: "NOTHING_CHANGED", Domain: "lofamo"})
	if err != nil {
		t.Fatal(err)
	}
	a.Certificates.Hold, a.Certificates.Err = make(chan struct{}), unread.Err()
	a.RefuseIf(func(proto.Message) error { return status.Error(codes.Unavailable, "stopping") })
	c := dial(t, dir, a.Address, b.Address)
	done := make(chan error, 1)
	go func() {
		_, err := c.PutDenyList(bounded(t), &lofamov1.SignedDenyList{})
		done <- err
	}()
	<-a.Certificates.Hold
	if _, err := c.ListNodes(bounded(t), &lofamov1.ListNodesRequest{}); err != nil || c.Answered() != b.Address {
		t.Fatalf("%v, %s answered: want %s", err, c.Answered(), b.Address)
	}
	a.Certificates.Hold <- struct{}{}
	go func() { // should it ask the first one again
		select {
		case <-a.Certificates.Hold:
			a.Certificates.Hold <- struct{}{}
		case <-t.Context().Done():
		}
	}()
	if err := <-done; err != nil || b.Certificates.Put != 1 {
		t.Errorf("%v, %d calls at the second supervisor: want its answer", err, b.Certificates.Put)
	}
}

// TestNextCallBeginsWhereLastOneWasAnswered: also after a call of another service than that of the fault map.
func TestNextCallBeginsWhereLastOneWasAnswered(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	s := clienttest.Serve(t, dir, clienttest.NewMap())
	s.Responses.Policies = &lofamov1.ListPoliciesResponse{}
	c := dial(t, dir, deadAddress(t), s.Address)
	if _, err := c.ListPolicies(bounded(t)); err != nil || c.Answered() != s.Address {
		t.Errorf("%v, %s answered: want %s", err, c.Answered(), s.Address)
	}
}

// TestNextCallBeginsWhereLastOneWasRefusedOrEnded: a refusal is an answer, and a watch has an answer before it ends. Without that, each
// further call would first wait for a supervisor that hangs.
func TestNextCallBeginsWhereLastOneWasRefusedOrEnded(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	s := clienttest.Serve(t, dir, clienttest.NewMap())
	s.Responses.Changes, s.Responses.Silent = []*lofamov1.WatchResponsesResponse{{}}, true
	for name, call := range map[string]func(*client.Client) error{
		"a node that does not exist": func(c *client.Client) error {
			_, err := c.GetNode(bounded(t), "9,9,9")
			return err
		},
		"a watch that the supervisor ends": func(c *client.Client) error {
			return c.WatchIncidents(bounded(t), &lofamov1.WatchIncidentsRequest{}, func(*lofamov1.WatchIncidentsResponse) error { return nil })
		},
		"a watch that its caller ends": func(c *client.Client) error {
			ctx, cancel := context.WithCancel(bounded(t))
			defer cancel()
			return c.WatchResponses(ctx, nil, func(*lofamov1.WatchResponsesResponse, bool) error {
				cancel()
				return nil
			})
		},
		"a change that is refused": func(c *client.Client) error {
			_, err := c.JoinNodes(bounded(t), &lofamov1.JoinNodesRequest{})
			return err
		},
	} {
		c := dial(t, dir, deadAddress(t), s.Address)
		if err := call(c); err == nil || c.Answered() != s.Address {
			t.Errorf("%s: %v, %s answered: want %s", name, err, c.Answered(), s.Address)
		}
	}
}
