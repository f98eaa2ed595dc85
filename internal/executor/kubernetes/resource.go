package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/lofamo/lofamo/internal/executor"
)

// Group and version of our custom resources.
const objectsVersion = "lofamo.io/v1alpha1"

// Labels of our objects: the names of the cluster and of the node that they belong to.
const clusterLabel, nodeLabel = "lofamo.io/cluster", "lofamo.io/node"

// Limits of the work with custom resources. The reads are bounded because anybody with rights in the namespace may write there.
const (
	objectsQPS, objectsBurst = 10, 20
	// objectsPage is the number of objects in one answer to a list.
	objectsPage = 25
	// maxObjectPart bounds a spec or a status that is kept, in bytes. Our own are smaller.
	maxObjectPart = 64 << 10
	// maxWatched bounds one event of a watch, in bytes: more than the API server stores in one object.
	maxWatched = 8 << 20
	// watchTime is the length of a watch, after which the follower lists again.
	watchTime = 5 * time.Minute
	// followRetry and followRetryMost are the first and the longest pause after a list or a watch that failed.
	followRetry, followRetryMost = time.Second, 30 * time.Second
)

// object is the part of a custom object that we read.
type object struct {
	Metadata objectMeta      `json:"metadata"`
	Spec     json.RawMessage `json:"spec"`
	Status   json.RawMessage `json:"status"`

	large bool // the spec or the status was too large to keep
}

// objectMeta is the part of the metadata that we read.
type objectMeta struct {
	Name              string            `json:"name"`
	UID               types.UID         `json:"uid"`
	ResourceVersion   string            `json:"resourceVersion"`
	Generation        int64             `json:"generation"`
	Labels            map[string]string `json:"labels"`
	DeletionTimestamp *metav1.Time      `json:"deletionTimestamp"`
}

// readObject decodes an object of a kind, and drops parts that are too large, and the labels of others: there may be many.
func readObject(b []byte, kind string) (object, error) {
	var is struct {
		metav1.TypeMeta
		object
	}
	err := json.Unmarshal(b, &is)
	if err == nil {
		err = checkObject(is.TypeMeta, is.Metadata.Name, objectsVersion, kind)
	}
	if err != nil {
		return object{}, fmt.Errorf("object of the API server: %w", err)
	}
	o := is.object
	if len(o.Spec) > maxObjectPart || len(o.Status) > maxObjectPart {
		o.Spec, o.Status, o.large = nil, nil, true
	}
	maps.DeleteFunc(o.Metadata.Labels, func(k, _ string) bool { return k != clusterLabel && k != nodeLabel })
	return o, nil
}

// checkAnswer returns an error unless an answer has the type. A proxy may answer with other JSON and code 200. That would count as an empty
// object or list.
func checkAnswer(is metav1.TypeMeta, apiVersion, kind string) error {
	if is.APIVersion != apiVersion || is.Kind != kind {
		return fmt.Errorf("kind: given %.64q of %.64q: want %s of %s", is.Kind, is.APIVersion, kind, apiVersion)
	}
	return nil
}

// checkObject is checkAnswer for an object, which has a name.
func checkObject(is metav1.TypeMeta, name, apiVersion, kind string) error {
	if err := checkAnswer(is, apiVersion, kind); err != nil {
		return err
	}
	if name == "" {
		return errors.New("metadata.name: given nothing: want a name")
	}
	return nil
}

// checkList is checkAnswer for a list, which has a version.
func checkList(is metav1.TypeMeta, meta metav1.ListMeta, apiVersion, kind string) error {
	if err := checkAnswer(is, apiVersion, kind); err != nil {
		return err
	}
	if meta.ResourceVersion == "" {
		return errors.New("metadata.resourceVersion: given nothing: want a version")
	}
	return nil
}

// readPage decodes one page of a list of objects of a kind.
func readPage(b []byte, kind string) (metav1.ListMeta, []object, error) {
	var page struct {
		metav1.TypeMeta
		Metadata metav1.ListMeta   `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}
	err := json.Unmarshal(b, &page)
	if err == nil {
		err = checkList(page.TypeMeta, page.Metadata, objectsVersion, kind+"List")
	}
	if err != nil {
		return metav1.ListMeta{}, nil, fmt.Errorf("list of the API server: %w", err)
	}
	var out []object
	for _, item := range page.Items {
		o, err := readObject(item, kind)
		if err != nil {
			return metav1.ListMeta{}, nil, err
		}
		out = append(out, o)
	}
	return page.Metadata, out, nil
}

// readEvents decodes the events of a watch of a kind. It returns when the watch ends or fails, at an event that is too large or has an
// object of another kind, or when each returns false.
func readEvents(from io.Reader, kind string, each func(change string, o object) bool) {
	in := &io.LimitedReader{R: from}
	for d := json.NewDecoder(in); ; {
		in.N = maxWatched
		var ev struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := d.Decode(&ev); err != nil || ev.Type == "ERROR" { // such as a version that is gone
			return
		}
		o, err := readObject(ev.Object, kind)
		if err != nil {
			return
		}
		if !each(ev.Type, o) {
			return
		}
	}
}

// version returns the version of the object, which grows with each change of any object; 0: unknown.
func (o object) version() uint64 {
	v, _ := strconv.ParseUint(o.Metadata.ResourceVersion, 10, 64)
	return v
}

// newer reports whether the object is of a later version than another one of its name, which may have been deleted since.
func (o object) newer(than object) bool {
	a, b := o.version(), than.version()
	return a == 0 || b == 0 || a > b
}

// resource is one custom resource in one namespace, with a bounded copy of its objects. It is safe for concurrent use.
type resource struct {
	c        *client
	path     string // of the list
	kind     string
	selector string // of labels; "": all objects
	most     int    // objects that the copy holds
	log      *slog.Logger

	mu      sync.Mutex
	synced  bool
	over    bool   // there are more objects than the copy holds
	seen    uint64 // the version of the last list or event of the watch
	objects map[string]object
	changed chan struct{} // holds one signal
}

func newResource(c *client, namespace, plural, kind, selector string, most int, log *slog.Logger) *resource {
	return &resource{
		c: c, path: "/apis/" + objectsVersion + "/namespaces/" + namespace + "/" + plural, kind: kind, selector: selector, most: most, log: log,
		objects: map[string]object{}, changed: make(chan struct{}, 1),
	}
}

// reset empties the copy before a term. Others may have led since the last list.
func (r *resource) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.objects, r.over, r.synced, r.seen = map[string]object{}, false, false, 0
}

// signal wakes the one who waits for changed.
func (r *resource) signal() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// all returns a copy of the objects; false: they have not been read yet. over reports that there are more.
func (r *resource) all() (objects map[string]object, over, synced bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.objects), r.over, r.synced
}

// put stores an object unless the copy has a newer version. own marks the answer to our own write: it adds no object if the watch has
// already passed that version, because the object may have been deleted since.
func (r *resource) put(o object, own bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, there := r.objects[o.Metadata.Name]
	switch {
	case there && !o.newer(was):
	case own && !there && o.version() != 0 && o.version() <= r.seen:
	case !there && len(r.objects) >= r.most:
		r.over = true
	default:
		r.objects[o.Metadata.Name] = o
	}
}

func (r *resource) remove(o object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, there := r.objects[o.Metadata.Name]; there && was.Metadata.UID == o.Metadata.UID {
		delete(r.objects, o.Metadata.Name)
	}
}

// excess reports whether there are more objects than the copy holds.
func (r *resource) excess() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over
}

// follow keeps the copy current until ctx ends. A watch that breaks is followed by a new list.
func (r *resource) follow(ctx context.Context) {
	said, pause := "", followRetry
	for ctx.Err() == nil {
		version, err := r.list(ctx)
		if err == nil {
			if said != "" {
				r.log.Info("custom resources of Kubernetes can be read again", "kind", r.kind)
			}
			said, pause = "", followRetry
			r.signal()
			err = r.watch(ctx, version)
		}
		if err == nil || ctx.Err() != nil {
			executor.Wait(ctx, followRetry) // a proxy may end every watch at once
			continue
		}
		if text := err.Error(); text != said { // the same reason once
			said = text
			r.log.Warn("custom resources of Kubernetes cannot be read: trying again", "kind", r.kind, "err", err)
		}
		if !executor.Wait(ctx, pause) {
			return
		}
		pause = min(2*pause, followRetryMost)
	}
}

// list reads all objects, page by page, and returns the version for a watch. It stops when the copy is full.
func (r *resource) list(ctx context.Context) (version string, err error) {
	objects, next := map[string]object{}, ""
	for {
		req := r.request(r.c.api.Get()).Param("limit", strconv.Itoa(objectsPage))
		if next != "" {
			req = req.Param("continue", next)
		}
		b, err := r.send(ctx, req)
		if err != nil {
			return "", fmt.Errorf("list %s: %w", r.path, err)
		}
		meta, items, err := readPage(b, r.kind)
		if err != nil {
			return "", fmt.Errorf("list %s: %w", r.path, err)
		}
		version, next = meta.ResourceVersion, meta.Continue
		for _, o := range items {
			if len(objects) < r.most {
				objects[o.Metadata.Name] = o
			} else {
				next = "full"
			}
		}
		if next == "" || next == "full" || len(objects) >= r.most {
			break
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.objects, r.over, r.synced = objects, next != "", true
	r.seen, _ = strconv.ParseUint(version, 10, 64)
	return version, nil
}

// request adds the path and the selector to a list or a watch.
func (r *resource) request(req *rest.Request) *rest.Request {
	req = req.AbsPath(r.path)
	if r.selector != "" {
		req = req.Param("labelSelector", r.selector)
	}
	return req
}

// watch applies changes after a version to the copy, until the watch ends. If there are too many objects, it ends with the next deletion:
// only a list shows whether all objects are in the copy now.
func (r *resource) watch(ctx context.Context, version string) error {
	ctx, cancel := context.WithTimeout(ctx, watchTime+r.c.timeout)
	defer cancel()
	established := time.AfterFunc(r.c.timeout, cancel) // a server that does not answer
	body, err := r.request(r.c.api.Get()).Param("watch", "true").Param("resourceVersion", version).
		Param("timeoutSeconds", strconv.Itoa(int(watchTime/time.Second))).MaxRetries(0).Stream(ctx)
	established.Stop()
	if err != nil {
		return fmt.Errorf("watch %s: %w", r.path, err)
	}
	defer func() { _ = body.Close() }()
	readEvents(body, r.kind, r.watched)
	return nil
}

// watched applies one event of a watch. It returns false if the copy lacks objects that only a list shows.
func (r *resource) watched(change string, o object) bool {
	r.mu.Lock()
	r.seen = o.version()
	r.mu.Unlock()
	if change == "DELETED" {
		r.remove(o)
	} else {
		r.put(o, false)
	}
	r.signal()
	return change != "DELETED" || !r.excess()
}

// send sends one request within the pace, and returns the answer's body.
func (r *resource) send(ctx context.Context, req *rest.Request) ([]byte, error) {
	if err := r.c.all.Wait(ctx); err != nil {
		return nil, unpaced{err}
	}
	one, cancel := context.WithTimeout(ctx, r.c.timeout)
	defer cancel()
	res := req.MaxRetries(0).Do(one)
	err := res.Error() // with the server's words, which Raw leaves out
	var b []byte
	if err == nil {
		b, err = res.Raw()
	}
	if err != nil && one.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no answer within %s: %w", r.c.timeout, err)
	}
	return b, err
}

// apply brings an object, or with a subresource that part of it, to the server by server-side apply. Others' values of the
// fields that it has are replaced. apply returns the version of the object.
func (r *resource) apply(ctx context.Context, name, subresource string, o any) (version string, _ error) {
	is, err := r.patch(ctx, name, subresource, o)
	if err == nil {
		r.put(is, true)
	}
	return is.Metadata.ResourceVersion, err
}

// patch is apply without a change of the copy. It returns the object.
func (r *resource) patch(ctx context.Context, name, subresource string, o any) (object, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return object{}, fmt.Errorf("%s %s: %w", r.kind, name, err)
	}
	path := r.path + "/" + name
	if subresource != "" {
		path += "/" + subresource
	}
	req := r.c.api.Patch(types.ApplyPatchType).AbsPath(path).Param("fieldManager", fieldManager).Param("force", "true").Body(body)
	b, err := r.send(ctx, req)
	if err != nil {
		return object{}, fmt.Errorf("write %s %s: %w", r.kind, name, err)
	}
	is, err := readObject(b, r.kind)
	if err != nil {
		return object{}, fmt.Errorf("write %s %s: %w", r.kind, name, err)
	}
	return is, nil
}

// delete removes an object, unless it is another one by now.
func (r *resource) delete(ctx context.Context, o object) error {
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions: &metav1.Preconditions{UID: &o.Metadata.UID},
	})
	if err != nil {
		return fmt.Errorf("delete %s %s: %w", r.kind, o.Metadata.Name, err)
	}
	_, err = r.send(ctx, r.c.api.Delete().AbsPath(r.path+"/"+o.Metadata.Name).Body(body))
	if err != nil && !IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete %s %s: %w", r.kind, o.Metadata.Name, err)
	}
	if err == nil {
		r.remove(o)
	}
	return nil
}
