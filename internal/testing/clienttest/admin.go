package clienttest

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Admin are a server's answers as lofamo.v1.SupervisorAdmin. Set it before the first call.
type Admin struct {
	lofamov1.UnimplementedSupervisorAdminServer

	Members  *lofamov1.ListMembersResponse
	Steps    []*lofamov1.MemberProgress // of AddMember and ReplaceMember
	Chunks   []*lofamov1.SnapshotChunk
	Disarmed []string
	// Err is the error of all calls; streams return it at their end.
	Err error
	// Asked has the requests, in words.
	Asked []string
}

func (a *Admin) asked(call string, req fmt.Stringer) {
	a.Asked = append(a.Asked, call+" "+req.String())
}

// ListMembers implements the service.
func (a *Admin) ListMembers(context.Context, *lofamov1.ListMembersRequest) (*lofamov1.ListMembersResponse, error) {
	return a.Members, a.Err
}

// AddMember implements the service.
func (a *Admin) AddMember(req *lofamov1.AddMemberRequest, s grpc.ServerStreamingServer[lofamov1.MemberProgress]) error {
	a.asked("add", req)
	return a.steps(s)
}

// ReplaceMember implements the service.
func (a *Admin) ReplaceMember(req *lofamov1.ReplaceMemberRequest, s grpc.ServerStreamingServer[lofamov1.MemberProgress]) error {
	a.asked("replace", req)
	return a.steps(s)
}

func (a *Admin) steps(s grpc.ServerStreamingServer[lofamov1.MemberProgress]) error {
	for _, p := range a.Steps {
		if err := s.Send(p); err != nil {
			return err
		}
	}
	return a.Err
}

// RemoveMember implements the service.
func (a *Admin) RemoveMember(_ context.Context, req *lofamov1.RemoveMemberRequest) (*lofamov1.RemoveMemberResponse, error) {
	a.asked("remove", req)
	return &lofamov1.RemoveMemberResponse{Members: a.Members.GetMembers()}, a.Err
}

// Snapshot implements the service.
func (a *Admin) Snapshot(_ *lofamov1.SnapshotRequest, s grpc.ServerStreamingServer[lofamov1.SnapshotChunk]) error {
	for _, c := range a.Chunks {
		if err := s.Send(c); err != nil {
			return err
		}
	}
	return a.Err
}

// DisarmAlarms implements the service.
func (a *Admin) DisarmAlarms(_ context.Context, req *lofamov1.DisarmAlarmsRequest) (*lofamov1.DisarmAlarmsResponse, error) {
	a.asked("disarm", req)
	return &lofamov1.DisarmAlarmsResponse{Disarmed: a.Disarmed}, a.Err
}

// Defragment implements the service.
func (a *Admin) Defragment(_ context.Context, req *lofamov1.DefragmentRequest) (*lofamov1.DefragmentResponse, error) {
	a.asked("defragment", req)
	return &lofamov1.DefragmentResponse{BytesBefore: 3 << 20, BytesAfter: 1 << 20}, a.Err
}
