package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/bounded"
	"github.com/lofamo/lofamo/internal/pki"
)

// The health services besides the whole server ("") and the API.
const (
	HealthLeader = "leader" // SERVING on the replica that leads
	HealthStore  = "store"  // SERVING while the store answers with a quorum
	HealthRoom   = "room"   // SERVING while the disk of the embedded store has room
)

// ServerConfig of the gRPC server.
type ServerConfig struct {
	TLS        *tls.Config
	Registerer prometheus.Registerer
	Logger     *slog.Logger
	MaxMessage int // bytes of an answer
	// Refused receives the reason for each call that is refused before its request is decoded. May be nil.
	Refused func(reason string)
	Revoked *pki.Registry // registry of revoked certificates, whose calls are refused; nil: none
}

// GRPC is a gRPC server with everything but the services.
type GRPC struct {
	*grpc.Server

	Health    *health.Server
	admission *admission
}

// RegisterService implements grpc.ServiceRegistrar.
func (g *GRPC) RegisterService(d *grpc.ServiceDesc, impl any) {
	g.Server.RegisterService(g.admission.admitted(d), impl)
}

// handshakeTime is the time limit for the TLS and HTTP/2 handshakes.
const handshakeTime = 5 * time.Second

// Subject returns the subject that a connection counts for, "ROLE/NAME"; empty for replicas, whose connections are
// not counted.
func Subject(state tls.ConnectionState) string {
	if len(state.PeerCertificates) == 0 {
		return ""
	}
	id, err := pki.IdentityOf(state.PeerCertificates[0])
	if err != nil || id.Role == pki.RoleSupervisor {
		return ""
	}
	return string(id.Role) + "/" + id.Name
}

// NewServer returns a gRPC server with everything but the services: mutual TLS, the check of roles, metrics,
// recovery, limits, health and reflection. The TLS configuration refuses roles that may call nothing; see Callers.
func NewServer(cfg ServerConfig) *GRPC {
	// Embedded etcd has metrics of the same names; the label tells them apart.
	labels := prometheus.Labels{"server": "lofamo"}
	m := grpcprom.NewServerMetrics(
		grpcprom.WithServerCounterOptions(grpcprom.WithConstLabels(labels)),
		grpcprom.WithServerHandlingTimeHistogram(grpcprom.WithHistogramConstLabels(labels)),
	)
	cfg.Registerer.MustRegister(m)
	rec := recovery.WithRecoveryHandler(func(p any) error {
		cfg.Logger.Error("panic in a gRPC handler", "panic", p, "stack", string(debug.Stack()))
		return status.Error(codes.Internal, "internal error: see the supervisor's log")
	})
	a := newAdmission(cfg.Refused)
	srv := grpc.NewServer(
		grpc.Creds(connecting{bounded.Credentials(cfg.TLS, Subject)}),
		grpc.ForceServerCodecV2(Codec()),
		grpc.InTapHandle(a.tap),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.MaxConcurrentStreams(1024),
		grpc.MaxHeaderListSize(maxHeaderList),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxSendMsgSize(cfg.MaxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.ChainUnaryInterceptor(m.UnaryServerInterceptor(), recovery.UnaryServerInterceptor(rec), AuthorizeUnary(rights, cfg.Revoked)),
		grpc.ChainStreamInterceptor(a.stream, m.StreamServerInterceptor(), recovery.StreamServerInterceptor(rec),
			AuthorizeStream(rights, cfg.Revoked)),
	)
	h := health.NewServer()
	for _, name := range []string{"", lofamov1.FaultSupervisor_ServiceDesc.ServiceName, HealthLeader, HealthStore} {
		h.SetServingStatus(name, healthpb.HealthCheckResponse_NOT_SERVING)
	}
	h.SetServingStatus(HealthRoom, healthpb.HealthCheckResponse_SERVING)
	g := &GRPC{srv, h, a}
	healthpb.RegisterHealthServer(g, h)
	reflection.Register(g)
	return g
}

// Callers returns the roles that may call any method: the TLS handshake refuses the others.
func Callers() []pki.Role { return slices.Clone(readers) }

var readers = []pki.Role{pki.RoleViewer, pki.RoleOperator, pki.RoleApprover, pki.RoleSupervisor}

// rights returns the roles that may call a method. A method that it does not list is refused.
func rights(method string) []pki.Role {
	switch method {
	case lofamov1.FaultSupervisor_GetBundle_FullMethodName, // it holds logs and addresses
		lofamov1.FaultSupervisor_ApplyTopology_FullMethodName,
		lofamov1.FaultSupervisor_AcknowledgeIncident_FullMethodName,
		lofamov1.FaultSupervisor_SetMaintenance_FullMethodName, lofamov1.FaultSupervisor_EndMaintenance_FullMethodName,
		lofamov1.Manage_Diagnose_FullMethodName, lofamov1.Manage_StartProcedure_FullMethodName:
		return []pki.Role{pki.RoleOperator, pki.RoleSupervisor} // replicas forward operators' requests
	}
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	switch service {
	case lofamov1.FaultSupervisor_ServiceDesc.ServiceName, lofamov1.Manage_ServiceDesc.ServiceName, healthpb.Health_ServiceDesc.ServiceName,
		"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection":
		return readers
	case lofamov1.Reconfigure_ServiceDesc.ServiceName:
		if method == lofamov1.Reconfigure_ListMasks_FullMethodName {
			return readers
		}
		return []pki.Role{pki.RoleOperator, pki.RoleSupervisor}
	case lofamov1.ResponseService_ServiceDesc.ServiceName:
		return responseRights(method)
	case lofamov1.Certificates_ServiceDesc.ServiceName:
		if method == lofamov1.Certificates_ListCertificates_FullMethodName {
			return readers
		}
		return []pki.Role{pki.RoleOperator}
	case lofamov1.Enrolment_ServiceDesc.ServiceName:
		return enrolmentRights(method)
	case lofamov1.SupervisorAdmin_ServiceDesc.ServiceName:
		return []pki.Role{pki.RoleOperator, pki.RoleSupervisor}
	case lofamov1.Replica_ServiceDesc.ServiceName, lofamov1.Upstream_ServiceDesc.ServiceName:
		return SupervisorsOnly(method)
	}
	return nil
}

// enrolmentRights is rights for enrolments. Nobody enrols here: nodes have an address of their own for that.
func enrolmentRights(method string) []pki.Role {
	switch method {
	case lofamov1.Enrolment_Admit_FullMethodName:
		return []pki.Role{pki.RoleSupervisor}
	case lofamov1.Enrolment_CreateToken_FullMethodName, lofamov1.Enrolment_RevokeToken_FullMethodName,
		lofamov1.Enrolment_ListTokens_FullMethodName:
		return []pki.Role{pki.RoleOperator, pki.RoleSupervisor}
	}
	return nil
}

// responseRights is rights for responses. Replicas forward people's requests.
func responseRights(method string) []pki.Role {
	may := func(roles []pki.Role) []pki.Role { return append(slices.Clone(roles), pki.RoleSupervisor) }
	switch method {
	case lofamov1.ResponseService_ApproveResponse_FullMethodName:
		return may(approvers)
	case lofamov1.ResponseService_DenyResponse_FullMethodName:
		return may(deniers)
	case lofamov1.ResponseService_AddNotifyTarget_FullMethodName, lofamov1.ResponseService_TestNotifyTarget_FullMethodName,
		lofamov1.ResponseService_RemoveNotifyTarget_FullMethodName,
		lofamov1.ResponseService_ApplyPolicies_FullMethodName, lofamov1.ResponseService_DeletePolicies_FullMethodName,
		lofamov1.ResponseService_CancelResponse_FullMethodName,
		lofamov1.ResponseService_RetryResponse_FullMethodName, lofamov1.ResponseService_SettleResponse_FullMethodName,
		lofamov1.ResponseService_CloseBreaker_FullMethodName:
		return may(operators)
	case lofamov1.ResponseService_ListNotifyTargets_FullMethodName,
		lofamov1.ResponseService_CheckPolicies_FullMethodName, lofamov1.ResponseService_GetPolicy_FullMethodName,
		lofamov1.ResponseService_ListPolicies_FullMethodName,
		lofamov1.ResponseService_ListResponses_FullMethodName, lofamov1.ResponseService_GetResponse_FullMethodName,
		lofamov1.ResponseService_WatchResponses_FullMethodName,
		lofamov1.ResponseService_GetBreaker_FullMethodName, lofamov1.ResponseService_ListAudit_FullMethodName,
		lofamov1.ResponseService_ExportAudit_FullMethodName:
		return readers
	}
	return nil
}

// SupervisorsOnly allows every method to the replicas alone.
func SupervisorsOnly(string) []pki.Role { return []pki.Role{pki.RoleSupervisor} }

// Caller returns who is at the other end of a call's connection; TLS has verified the certificate.
func Caller(ctx context.Context) (pki.Identity, error) { return caller(ctx) }

func caller(ctx context.Context) (pki.Identity, error) {
	info, ok := tlsInfo(ctx)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return pki.Identity{}, fmt.Errorf("no client certificate")
	}
	return pki.IdentityOf(info.State.PeerCertificates[0])
}

// certificate returns the certificate that the caller opened its connection with.
func certificate(ctx context.Context) *x509.Certificate {
	if info, ok := tlsInfo(ctx); ok && len(info.State.PeerCertificates) > 0 {
		return info.State.PeerCertificates[0]
	}
	return nil
}

// tlsInfo returns the state of the caller's connection.
func tlsInfo(ctx context.Context) (credentials.TLSInfo, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return credentials.TLSInfo{}, false
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	return info, ok
}

func authorize(ctx context.Context, method string, roles func(string) []pki.Role, revoked *pki.Registry) error {
	id, err := caller(ctx)
	if err == nil {
		err = revoked.CheckCertificate(certificate(ctx)) // which may have been revoked since the handshake
	}
	if err != nil {
		return status.Errorf(codes.PermissionDenied, "%s: %v", method, err)
	}
	if !slices.Contains(roles(method), id.Role) {
		return mayNot(method, id)
	}
	return nil
}

func mayNot(method string, id pki.Identity) error {
	return status.Errorf(codes.PermissionDenied, "%s: role %s of %s may not call it", method, id.Role, id)
}

// AuthorizeUnary refuses callers whose role may not call the method.
func AuthorizeUnary(roles func(method string) []pki.Role, revoked *pki.Registry) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if err := authorize(ctx, info.FullMethod, roles, revoked); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

// AuthorizeStream is like AuthorizeUnary, for streams. A stream ends when its caller's certificate is revoked.
func AuthorizeStream(roles func(method string) []pki.Role, revoked *pki.Registry) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if err := authorize(ss.Context(), info.FullMethod, roles, revoked); err != nil {
			return err
		}
		ctx, cancel := revoked.Watch(ss.Context(), certificate(ss.Context()))
		defer cancel()
		err := next(srv, trustedStream{ss, ctx})
		if cause := context.Cause(ctx); errors.Is(cause, pki.ErrRevoked) {
			return status.Errorf(codes.PermissionDenied, "%s: %v", info.FullMethod, cause)
		}
		return err
	}
}

// trustedStream is a stream whose context ends with its caller's certificate.
type trustedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (w trustedStream) Context() context.Context { return w.ctx }

// RecvMsg implements grpc.ServerStream. It drops messages that a caller sent after the revocation.
func (w trustedStream) RecvMsg(m any) error {
	err := w.ServerStream.RecvMsg(m)
	if cause := context.Cause(w.ctx); cause != nil {
		return cause
	}
	return err
}
