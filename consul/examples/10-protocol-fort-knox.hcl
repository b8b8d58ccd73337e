# Consul takes Permissions for a service that speaks HTTP alone. This goes before them.
Kind     = "service-defaults"
Name     = "fort-knox"
Protocol = "http"
