package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serves reports whether the API server serves a resource of a group and version. An answer that is not of the expected kind is an error.
// By default every account may read these lists.
func (c *client) serves(ctx context.Context, apiVersion, plural string) (bool, error) {
	b, err := c.readRaw(ctx, c.api.Get().AbsPath("/apis"))
	if err != nil {
		return false, fmt.Errorf("list the groups of the API server: %w", err)
	}
	if has, err := groupsHave(b, apiVersion); !has {
		return false, err
	}
	b, err = c.readRaw(ctx, c.api.Get().AbsPath("/apis/"+apiVersion))
	if err != nil {
		return false, fmt.Errorf("list the resources of %s: %w", apiVersion, err)
	}
	return resourcesHave(b, apiVersion, plural)
}

// groupsHave reports whether a list of API groups has that group and version.
func groupsHave(b []byte, apiVersion string) (bool, error) {
	var l metav1.APIGroupList
	if err := json.Unmarshal(b, &l); err != nil {
		return false, fmt.Errorf("groups of the API server: %w", err)
	}
	if l.Kind != "APIGroupList" {
		return false, fmt.Errorf("groups of the API server: given kind %.64q: want APIGroupList", l.Kind)
	}
	return slices.ContainsFunc(l.Groups, func(g metav1.APIGroup) bool {
		return slices.ContainsFunc(g.Versions, func(v metav1.GroupVersionForDiscovery) bool { return v.GroupVersion == apiVersion })
	}), nil
}

// resourcesHave reports whether a list of the resources of a group and version has that resource.
func resourcesHave(b []byte, apiVersion, plural string) (bool, error) {
	var l metav1.APIResourceList
	if err := json.Unmarshal(b, &l); err != nil {
		return false, fmt.Errorf("resources of %s: %w", apiVersion, err)
	}
	if l.Kind != "APIResourceList" || l.GroupVersion != apiVersion {
		return false, fmt.Errorf("resources of %s: given kind %.64q of %.64q: want APIResourceList", apiVersion, l.Kind, l.GroupVersion)
	}
	return slices.ContainsFunc(l.APIResources, func(r metav1.APIResource) bool { return r.Name == plural }), nil
}
