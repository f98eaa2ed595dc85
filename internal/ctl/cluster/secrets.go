package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/inventory"
)

// keepBound bounds all requests to the API server together.
const keepBound = 2 * time.Minute

func clusterSecretsCommand(a *command.App) *cobra.Command {
	var s secrets
	var kubeconfig string
	cmd := &cobra.Command{
		Use:   "secrets INVENTORY --namespace NAME",
		Short: "In Kubernetes: make the keys of a cluster whose nodes enrol, and renew them",
		Long: `Makes the authority and the keys of a cluster, and keeps them in Secrets of a namespace. A later call makes missing ones, and
renews certificates in the last third of their lifetime. The chart (helm/lofamo) runs it before an installation, before
an upgrade, and twice a month. The inventory has no nodes: they make their own keys when they enrol.

PREFIXauthority has the keys of the authority. Whoever can read it can make any certificate of the cluster.
PREFIXsupervisor-ID has the keys of one supervisor. PREFIXviewer, PREFIXoperator and PREFIXapprover have those of people.
The ConfigMap PREFIXca has the certificates by which nodes recognise supervisors.

If the authority's Secret is missing and another one is there, the command fails and changes nothing: a new authority would
shut out all members.`,
		Example: `  lofamoctl cluster secrets inventory.yaml --namespace lofamo --kubeconfig ~/.kube/config`,
		Args:    command.Exactly("INVENTORY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !objectName.MatchString(s.prefix+"x") || !objectName.MatchString(s.namespace) {
				return command.Usagef("--namespace %q, --prefix %q: want lower-case letters, digits and '-', as in names of Kubernetes", s.namespace,
					s.prefix)
			}
			inv, err := inventory.Load(args[0])
			if err != nil {
				return err
			}
			if s.api, err = apiServer(kubeconfig); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), keepBound)
			defer cancel()
			return s.keep(ctx, a, inv)
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.namespace, "namespace", "", "of the Secrets (required)")
	f.StringVar(&s.prefix, "prefix", "lofamo-", "beginning of the names of the Secrets")
	f.StringVar(&kubeconfig, "kubeconfig", "", "file with the address of the API server and your rights (default: those of this pod)")
	return cmd
}

var objectName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// apiServer returns a client with the few types in use. It sends nothing yet.
func apiServer(kubeconfig string) (rest.Interface, error) {
	rc, err := rest.InClusterConfig()
	if kubeconfig != "" {
		rc, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: given %q: want a file, or a pod with a service account: %w", kubeconfig, err)
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("types of Kubernetes: %w", err)
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	gv := corev1.SchemeGroupVersion
	rc.GroupVersion, rc.APIPath, rc.UserAgent = &gv, "/api", "lofamoctl"
	rc.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientFor(rc)
}

// secrets are the Secrets of one cluster, with the ConfigMap of its certificates.
type secrets struct {
	api               rest.Interface
	namespace, prefix string
}

// object is a Secret or a ConfigMap; nil: there is none.
type object interface {
	runtime.Object
	metav1.Object
}

// keep reads the Secrets, and writes those that inventory.Keep changes. It writes a new authority first, because the others are useless
// without it, and an existing one last: its inventory says which addresses all certificates have. Of two calls at the same time, one
// fails at a conflict, and may be repeated.
func (s *secrets) keep(ctx context.Context, a *command.App, inv inventory.Inventory) (err error) {
	kept, have := inventory.Kept{}, map[string]object{}
	names := inv.KeptNames()
	for _, name := range names {
		o, files, err := s.read(ctx, name)
		if err != nil {
			return err
		}
		if o != nil {
			kept[name], have[name] = files, o
		}
	}
	dir, err := os.MkdirTemp("", "lofamo-keys-")
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	want, err := inv.Keep(filepath.Join(dir, "cluster"), kept, a.Env.Now())
	if err != nil {
		return err
	}
	if have[inventory.KeptAuthority] != nil {
		names = append(slices.DeleteFunc(names, func(n string) bool { return n == inventory.KeptAuthority }), inventory.KeptAuthority)
	}
	for _, name := range names {
		what := "unchanged"
		if !maps.EqualFunc(kept[name], want[name], bytes.Equal) {
			if err := s.write(ctx, name, have[name], want[name]); err != nil {
				return err
			}
			if what = "made"; have[name] != nil {
				what = "changed"
			}
		}
		a.Printf("%s/%s%s: %s\n", s.namespace, s.prefix, name, what)
	}
	return nil
}

func (s *secrets) resource(name string) string {
	if name == inventory.KeptCA {
		return "configmaps"
	}
	return "secrets"
}

// read returns an object and its files; nil without an error: there is none.
func (s *secrets) read(ctx context.Context, name string) (object, map[string][]byte, error) {
	var into object = &corev1.Secret{}
	if name == inventory.KeptCA {
		into = &corev1.ConfigMap{}
	}
	err := s.api.Get().Namespace(s.namespace).Resource(s.resource(name)).Name(s.prefix + name).Do(ctx).Into(into)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("read %s %s/%s%s: %w", s.resource(name), s.namespace, s.prefix, name, err)
	}
	if m, ok := into.(*corev1.ConfigMap); ok {
		files := map[string][]byte{}
		for base, text := range m.Data {
			files[base] = []byte(text)
		}
		return into, files, nil
	}
	return into, into.(*corev1.Secret).Data, nil
}

// write makes an object, or replaces the files of the one that was read.
func (s *secrets) write(ctx context.Context, name string, have object, files map[string][]byte) error {
	meta := metav1.ObjectMeta{Namespace: s.namespace, Name: s.prefix + name, Labels: map[string]string{
		"app.kubernetes.io/name": "lofamo", "app.kubernetes.io/managed-by": "lofamoctl"}}
	var o object
	switch have := have.(type) {
	case *corev1.Secret:
		have.Data, o = files, have
	case *corev1.ConfigMap:
		have.Data, have.BinaryData, o = texts(files), nil, have
	default:
		o = &corev1.Secret{ObjectMeta: meta, Data: files}
		if name == inventory.KeptCA {
			o = &corev1.ConfigMap{ObjectMeta: meta, Data: texts(files)}
		}
	}
	req, verb := s.api.Post(), "make"
	if have != nil {
		req, verb = s.api.Put().Name(s.prefix+name), "change"
	}
	if err := req.Namespace(s.namespace).Resource(s.resource(name)).Body(o).Do(ctx).Error(); err != nil {
		return fmt.Errorf("%s %s %s/%s%s: %w", verb, strings.TrimSuffix(s.resource(name), "s"), s.namespace, s.prefix, name, err)
	}
	return nil
}

func texts(files map[string][]byte) map[string]string {
	out := map[string]string{}
	for base, b := range files {
		out[base] = string(b)
	}
	return out
}
