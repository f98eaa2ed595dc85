package memstore_test

import (
	"testing"

	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/store/storetest"
)

func TestMemoryStoreKeepsContract(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Harness {
		s := memstore.New(storetest.KeepEvents)
		return storetest.Harness{Store: s, Campaign: s.Campaign, Compact: s.Compact}
	})
}
