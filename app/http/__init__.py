"""The HTTP layer that all packages share: authentication, bodies, responses, errors. It imports no
package about jobs or queues.
"""
