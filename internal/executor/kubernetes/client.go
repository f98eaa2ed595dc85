package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// client sends single requests. It never retries, because whether a retry is safe depends on the request.
type client struct {
	api     rest.Interface
	http    *http.Client
	all     *pace         // for all requests except those for events
	events  *pace         // for events, so that they never delay a request that takes effect
	follow  *pace         // for the watch of nodes and for the kept conditions, so that they never delay a response
	timeout time.Duration // per request
	sure    time.Duration // the constant sure; shorter in tests
	watch   time.Duration // the longest watch of nodes; shorter in tests
}

// restConfig returns the client configuration for the API server.
func restConfig(cfg Config) (*rest.Config, error) {
	if cfg.Kubeconfig == "" {
		c, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("kubeconfig: given nothing: want a file, or a pod with a service account: %w", err)
		}
		return c, nil
	}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: cfg.Kubeconfig}, &clientcmd.ConfigOverrides{CurrentContext: cfg.Context})
	c, err := loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", cfg.Kubeconfig, err)
	}
	return c, nil
}

// connect returns a client of the configured API server. It sends nothing yet.
func connect(cfg Config) (*client, error) {
	rc, err := restConfig(cfg)
	if err != nil {
		return nil, err
	}
	return newClient(cfg, rc)
}

// newClient returns a client for the few types in use. The typed clients of client-go would be several times as large.
func newClient(cfg Config, rc *rest.Config) (*client, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, policyv1.AddToScheme, authenticationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("types of Kubernetes: %w", err)
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	rc = rest.CopyConfig(rc)
	gv := corev1.SchemeGroupVersion
	rc.GroupVersion, rc.APIPath = &gv, "/api"
	rc.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	rc.ContentType, rc.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	rc.QPS = -1 // client.all and client.events limit the rate, since they separate events from the other requests
	rc.WarningHandler = rest.NoWarnings{}
	rc.UserAgent = cmp.Or(rc.UserAgent, "lofamo-supervisor")
	h, err := rest.HTTPClientFor(rc)
	if err != nil {
		return nil, fmt.Errorf("client of Kubernetes: %w", err)
	}
	api, err := rest.RESTClientForConfigAndClient(rc, h)
	if err != nil {
		return nil, fmt.Errorf("client of Kubernetes: %w", err)
	}
	return &client{api: api, http: h, all: newPace(cfg.QPS, cfg.Burst), events: newPace(cfg.QPS, cfg.Burst),
		follow:  newPace(min(keepQPS, cfg.QPS), min(keepQPS, cfg.Burst)),
		timeout: time.Duration(cfg.RequestTimeout), sure: sure, watch: watchSpan + watchSlack}, nil
}

// errNotSent means that a request has not left this process.
var errNotSent = errors.New("not sent")

// unpaced is an errNotSent: the pace did not allow the request before the time was over.
type unpaced struct{ err error }

func (u unpaced) Error() string   { return fmt.Sprintf("%v: %v", errNotSent, u.err) }
func (u unpaced) Unwrap() []error { return []error{errNotSent, u.err} }

// cause returns the error to report for an attempt. If time ran out before the last try was sent or answered, it returns the
// error of the try before, which tells more about the server.
func cause(ctx context.Context, err, before error) error {
	_, late := errors.AsType[unpaced](err)
	if before != nil && (late || ctx.Err() != nil && errors.Is(err, ctx.Err())) {
		return before
	}
	return err
}

// do sends a changing request once the pace allows it. Right before sending it checks that no higher token has been
// seen.
func (c *client) do(ctx context.Context, p *pace, r *rest.Request) error {
	if err := p.Wait(ctx); err != nil {
		return unpaced{err}
	}
	if err := c.fenced(ctx); err != nil {
		return err
	}
	failpoint.Hit(failpoint.KubernetesSend)
	return c.send(ctx, r, nil)
}

// read sends a read request, which waits for all changing ones, and decodes the answer into into.
func (c *client) read(ctx context.Context, p *pace, r *rest.Request, into runtime.Object) error {
	if err := p.waitToRead(ctx); err != nil {
		return unpaced{err}
	}
	return c.send(ctx, r, into)
}

// sure is the maximum age of the leadership check when a request leaves. A process that was stopped in between checks
// again.
const sure = 500 * time.Millisecond

// fenced fails with errNotSent. The error wraps executor.ErrStale, which is permanent, if a higher token is known.
// Otherwise the store cannot answer now, or ctx has ended.
func (c *client) fenced(ctx context.Context) error {
	one, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	asked, err := executor.FencedSince(one)
	took := time.Since(asked)
	switch {
	case errors.Is(err, executor.ErrStale):
		return fmt.Errorf("%w: %w", errNotSent, err)
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", errNotSent, context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("%w: cannot confirm that this supervisor still leads: %w", errNotSent, err)
	case took > c.sure: // this process was stopped in between, or the store is slow
		return fmt.Errorf("%w: cannot confirm that this supervisor still leads: the store's word is %s old: want at most %s", errNotSent,
			took.Round(time.Millisecond), c.sure)
	}
	return nil
}

func (c *client) send(ctx context.Context, r *rest.Request, into runtime.Object) error {
	one, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	res := r.MaxRetries(0).Do(one)
	err := res.Error()
	if err == nil && into != nil {
		err = decodeAnswer(res, into)
	}
	if err != nil && one.Err() != nil && ctx.Err() == nil {
		// The connection may hang: the next request gets another one.
		utilnet.CloseIdleConnectionsFor(c.http.Transport)
		err = fmt.Errorf("no answer within %s: %w", c.timeout, err)
	}
	return err
}

// decodeAnswer decodes an answer into an object. An answer of another type, such as a proxy's answer with code 200 and other JSON, is an
// error. Result.Into would leave the object empty in this case.
func decodeAnswer(res rest.Result, into runtime.Object) error {
	is, err := res.Get()
	if err != nil {
		return err
	}
	from, to := reflect.ValueOf(is), reflect.ValueOf(into)
	if from.Type() != to.Type() {
		return fmt.Errorf("answer of the API server: given %T: want %T", is, into)
	}
	to.Elem().Set(from.Elem())
	return nil
}

func (c *client) node(ctx context.Context, p *pace, name string) (*corev1.Node, error) {
	n := &corev1.Node{}
	return n, c.read(ctx, p, c.api.Get().Resource("nodes").Name(name), n)
}

// labelled returns the nodes with that value of a label, at most two.
func (c *client) labelled(ctx context.Context, p *pace, key, value string) ([]corev1.Node, error) {
	l := &corev1.NodeList{}
	err := c.read(ctx, p, c.api.Get().Resource("nodes").Param("labelSelector", key+"="+value).Param("limit", "2"), l)
	return l.Items, err
}

func (c *client) write(ctx context.Context, name string, w *nodeWrite) error {
	how := types.MergePatchType
	if w.Apply {
		how = types.ApplyPatchType
	}
	r := c.api.Patch(how).Resource("nodes").Name(name).Param("fieldManager", fieldManager)
	if w.Apply {
		// The plan leaves out fields that somebody else owns. Force is needed because the attempt and the token are
		// written through both the node and its status, which are different owners in managed fields.
		r = r.Param("force", "true")
	}
	if w.Status {
		r = r.SubResource("status")
	}
	return c.do(ctx, c.all, r.Body(w.Body))
}

// pods returns the pods on a node.
func (c *client) pods(ctx context.Context, node string) ([]corev1.Pod, error) {
	l := &corev1.PodList{}
	err := c.read(ctx, c.all, c.api.Get().Resource("pods").Param("fieldSelector", "spec.nodeName="+node), l)
	return l.Items, err
}

// evict requests the eviction of one pod within the disruption budgets.
func (c *client) evict(ctx context.Context, p *corev1.Pod, grace *int64) error {
	b, err := json.Marshal(&policyv1.Eviction{
		TypeMeta:      metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "Eviction"},
		ObjectMeta:    metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
		DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: grace, Preconditions: metav1.NewUIDPreconditions(string(p.UID))},
	})
	if err != nil {
		return fmt.Errorf("eviction of %s/%s: %w", p.Namespace, p.Name, err)
	}
	return c.do(ctx, c.all, c.api.Post().Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("eviction").Body(b))
}

func (c *client) createEvent(ctx context.Context, e *corev1.Event) error {
	b, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("event %s: %w", e.Name, err)
	}
	return c.do(ctx, c.events, c.api.Post().Namespace(e.Namespace).Resource("events").Body(b))
}

// notDone reports whether a failed request has certainly changed nothing and never will.
func notDone(err error) bool {
	var dial *net.OpError
	switch {
	case errors.Is(err, errNotSent), errors.As(err, &dial) && dial.Op == "dial":
		return true
	default:
		return refused(err) || busy(err) || passing(err) || apierrors.IsConflict(err)
	}
}

// busy reports whether the API server asks for a later retry.
func busy(err error) bool { return apierrors.IsTooManyRequests(err) }

// passing reports whether the request was rejected for a reason that may pass. After a 401, which a token rotation can cause, the next
// request reads the token again. A 410 ends a list whose pages took too long. A proxy may reach the API server again.
func passing(err error) bool {
	return apierrors.IsUnauthorized(err) || apierrors.IsGone(err) || apierrors.IsResourceExpired(err) || rejectedByProxy(err)
}

// refused reports whether the API server has rejected the request, so that a retry is useless now.
func refused(err error) bool {
	return rejected(err) && !apierrors.IsConflict(err) && !busy(err) && !passing(err) && !apierrors.IsTimeout(err) &&
		!apierrors.IsServerTimeout(err)
}

// rejected reports whether the answer to the request has a code from 400 to 499.
func rejected(err error) bool {
	var s apierrors.APIStatus
	if !errors.As(err, &s) {
		return false
	}
	code := s.Status().Code
	return code >= 400 && code < 500
}

// rejectedByProxy reports whether the request was rejected with an answer that is no Status of the API server. A proxy in front of the API
// server answers like this. So does the API server itself for unknown paths, for instance those of a kind that is not installed.
func rejectedByProxy(err error) bool { return rejected(err) && apierrors.IsUnexpectedServerError(err) }

// IsNotFound reports whether the API server has answered that there is no such object. The 404 of a proxy tells nothing about the object.
func IsNotFound(err error) bool { return apierrors.IsNotFound(err) && !rejectedByProxy(err) }
