package supervisor

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/alertmanager"
	"github.com/lofamo/lofamo/internal/executor/kubernetes"
	"github.com/lofamo/lofamo/internal/executor/node"
	"github.com/lofamo/lofamo/internal/executor/webhook"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/api"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/federation"
	"github.com/lofamo/lofamo/internal/supervisor/ingest"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/orders"
	"github.com/lofamo/lofamo/internal/supervisor/replica"
	"github.com/lofamo/lofamo/internal/supervisor/respond"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/internal/supervisor/web"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet/gossip"
)

// site is the configuration and the place of one replica. All parts read it.
type site struct {
	cfg     config.Supervisor
	periods config.Periods
	born    time.Time           // with a monotonic reading: a clock of this replica that never goes back
	self    config.ReplicaEntry // the addresses at which peers reach this replica
	logger  *slog.Logger
	names   *view.Names
	seed    *topology.Topology // of the configuration
	marks   *view.Marks
	masks   *view.Masks
}

// identity holds the keys and certificates of this replica, and verifies those of its peers.
type identity struct {
	signer   *pki.Signer
	ecdsa    *pki.Signer // for gRPC clients that refuse Ed25519; nil: none
	verify   *pki.Verifier
	trust    trust
	renewals *renewals            // nil: this replica renews no certificate
	accounts *kubernetes.Accounts // nil: no node enrols with the token of a service account
	// renewEvery is the interval between checks for a renewed certificate of this replica.
	renewEvery time.Duration
	gossipKeys [][]byte // the first encrypts; nil without gossip
}

// storePart is etcd, the map in it, and the election.
type storePart struct {
	*store.Etcd
	member   *embedded.Member // nil with an external etcd
	client   *clientv3.Client
	observer *store.Observer
	refusals spaceRefusals // of an external etcd
	rollback rollback
	// incidents is nil in a parent of regions.
	incidents *store.IncidentFeed
}

// enginePart computes the fault map while this replica leads, and forwards evidence to the leader while it follows.
type enginePart struct {
	*engine.Engine // nil in a parent of regions
	replicas       *replicas
	peers          *replica.Peers
	forward        *replica.Forwarder
	local          *replica.Copy
	followers      *replica.Server // the other replicas while this one leads
	ready          readiness
}

// ingestPart receives and sends agents' messages. It is empty in a parent of regions.
type ingestPart struct {
	exchanges *ingest.Exchanges
	sender    *ingest.Sender
	intake    *ingest.Intake
	bulk      *ingest.BulkManager
	diagnoses *orders.Diagnoses
}

// gossipPart is the membership in the gossip pool.
type gossipPart struct {
	*gossip.Net // nil without gossip
	cancel      context.CancelFunc
	wg          sync.WaitGroup
}

// respondPart runs responses to faults.
type respondPart struct {
	responder *respond.Responder    // nil in a parent of regions, and where the configuration disables responses
	executor  *executor.Remote      // the executor process; nil if there is none
	actor     *node.Actor           // sends the actions of responses to nodes
	webhooks  *webhook.Executor     // nil without a responder
	alerts    *alertmanager.Targets // the same
	cluster   *kubernetes.Executor  // nil: no responses in Kubernetes
	witnesses *witnesses            // the management controllers of nodes; nil without an executor process
}

// federationPart connects this replica to other regions and to a parent.
type federationPart struct {
	regionOf func(fault.NodeID) string // from the configuration; a parent asks the regions for spares
	spares   spareRegions              // in a parent
	parent   *federation.Parent        // nil in a region
	below    *replica.Peers            // of a parent: the supervisors of its regions
	uplink   *federation.Uplink        // nil without a parent
	parents  *replica.Peers
	border   *federation.Peers // nil without other regions
}

// apiPart serves gRPC.
type apiPart struct {
	*api.Server
	grpc   *api.GRPC
	health *health.Server
	served chan struct{} // closed when the server has ended

	enrols   *grpc.Server  // serves nodes that enrol; nil: none
	enrolled chan struct{} // closed when that server has ended
}

// webPart serves the page for browsers.
type webPart struct {
	conn   *grpc.ClientConn // to this replica's API; nil: no page
	page   *web.Server
	server *http.Server
	served chan struct{} // closed when the server has ended
}

// metricsPart counts, and serves metrics and health over HTTP.
type metricsPart struct {
	*metrics.Metrics
	registry *prometheus.Registry
	server   *http.Server  // nil: no HTTP service
	served   chan struct{} // closed when the server has ended
	alarms   alarms
}
