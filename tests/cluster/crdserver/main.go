// crdserver: a real Kubernetes CustomResourceDefinition API server for tests.
// It is k8s.io/apiextensions-apiserver (Debian packages golang-k8s-*-dev) with authentication, authorization and
// admission that need a core kube-apiserver switched off, on loopback, storing in a real etcd, plus the root
// discovery document /apis that kubectl and clients ask for first (the aggregator serves it in a full cluster).
// It serves: CRDs (structural schemas, defaults, pruning, CEL rules, status and scale subresources, printer columns,
// conversion None), custom resources, list, watch with resourceVersion, bookmarks, 410 Gone, server-side apply.
// It does not serve: pods, namespaces, nodes, services, secrets, leases, RBAC, webhooks.
package main

import (
	"errors"
	"flag"
	"net"
	"net/url"
	"os"

	noopoteltrace "go.opentelemetry.io/otel/trace/noop"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	generatedopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
)

type noServices struct{} // webhook conversion needs core Services: not here

func (noServices) ResolveEndpoint(string, string, int32) (*url.URL, error) {
	return nil, errors.New("crdserver has no services")
}

func main() {
	etcd := flag.String("etcd", "http://127.0.0.1:2379", "etcd URL")
	prefix := flag.String("prefix", "/crdserver", "etcd key prefix")
	port := flag.Int("port", 6553, "TLS port on 127.0.0.1")
	cert := flag.String("cert", "", "serving certificate file (PEM)")
	key := flag.String("key", "", "serving key file (PEM)")
	flag.Parse()

	o := options.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr)
	r := o.RecommendedOptions
	r.Etcd.StorageConfig.Transport.ServerList = []string{*etcd}
	r.Etcd.StorageConfig.Prefix = *prefix
	r.SecureServing.BindAddress = net.ParseIP("127.0.0.1")
	r.SecureServing.BindPort = *port
	r.SecureServing.ServerCert.CertKey.CertFile = *cert
	r.SecureServing.ServerCert.CertKey.KeyFile = *key
	r.Authentication, r.Authorization, r.CoreAPI, r.Admission = nil, nil, nil, nil
	r.Features.EnablePriorityAndFairness = false
	check(o.Complete())

	c := genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	check(o.ServerRunOptions.ApplyTo(&c.Config))
	check(r.ApplyTo(c))
	check(o.APIEnablement.ApplyTo(&c.Config, apiserver.DefaultAPIResourceConfigSource(), apiserver.Scheme))
	defs := openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions)
	namer := openapinamer.NewDefinitionNamer(apiserver.Scheme, scheme.Scheme)
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(defs, namer) // kubectl asks for it before it applies
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(defs, namer)
	config := &apiserver.Config{GenericConfig: c, ExtraConfig: apiserver.ExtraConfig{
		CRDRESTOptionsGetter: options.NewCRDRESTOptionsGetter(*r.Etcd, c.ResourceTransformers, c.StorageObjectCountTracker),
		ServiceResolver:      noServices{},
		AuthResolverWrapper:  webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, c.LoopbackClientConfig, noopoteltrace.NewTracerProvider()),
	}}
	server, err := config.Complete().New(genericapiserver.NewEmptyDelegate())
	check(err)
	s := server.GenericAPIServer
	h := aggregated.WrapAggregatedDiscoveryToHandler(s.DiscoveryGroupManager, s.AggregatedDiscoveryGroupManager, nil)
	s.Handler.GoRestfulContainer.Add(h.GenerateWebService("/apis", metav1.APIGroupList{}))
	check(s.PrepareRun().RunWithContext(genericapiserver.SetupSignalContext()))
}

func check(err error) {
	if err != nil {
		klog.ErrorS(err, "crdserver")
		os.Exit(1)
	}
}
